"""Suite-wide settings: CPU, deterministic Hypothesis, and no deadlines, since compiles are slow."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax

hypothesis.settings.register_profile(
    "tiercache",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("tiercache")
jax.config.update("jax_numpy_dtype_promotion", "standard")
