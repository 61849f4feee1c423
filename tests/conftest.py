"""Suite-wide settings: CPU, deterministic Hypothesis, and no deadlines, since compiles are slow.

What one worker has compiled the others load: most of the suite's time is XLA's.
"""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Of this run alone, and removed with it. Workers and other subprocesses inherit it.
    compiled = tempfile.TemporaryDirectory(prefix="compiled-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile(
    "tiercache",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("tiercache")
jax.config.update("jax_numpy_dtype_promotion", "standard")
jax.config.update("jax_num_cpu_devices", 2)  # for an index that is not where the pools are


def pytest_configure(config):
    # Type checks of lists draw from `random`, and strategies of the kit are checked, too.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning",
    )


@pytest.fixture
def quick_compiles():
    """Leaves out what takes XLA a third of its time, for tests that are mostly compiles and whose
    claim is not about optimised programs. What they compile is theirs alone, or of tests like them.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
