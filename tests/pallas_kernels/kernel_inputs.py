"""What tests of kernels give them, and how they look at what comes back: plain bytes, in NumPy."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np

from pallas_kernels.cases import Case

SENTINEL = 2**30


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype) -> np.ndarray:
    """Random bytes: no two pages, planes, heads or tokens alike, and NaNs among them."""
    dtype = jnp.dtype(dtype)
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), np.uint8)
    return data.view(dtype)


def as_bytes(x) -> np.ndarray:
    """The bytes of each row of the last axis."""
    return np.ascontiguousarray(np.asarray(x)).view(np.uint8)


def assert_same_bytes(got, want) -> None:
    """Asserts that two trees hold the same leaves, bit for bit."""
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (jnp.dtype(a.dtype), a.shape) == (jnp.dtype(b.dtype), b.shape)
        np.testing.assert_array_equal(as_bytes(a), as_bytes(b))


def that_exist(sources, num_sources: int, targets, num_targets: int) -> list[tuple[int, int]]:
    """(source, target) of each pair of ids that exists, in order."""
    pairs = zip(sources, targets, strict=True)
    return [(a, b) for a, b in pairs if 0 <= a < num_sources and 0 <= b < num_targets]


def in_host(x) -> jax.Array:
    """The array in pinned host memory, which the CPU backend has too."""
    pinned = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    return jax.device_put(jnp.asarray(x), pinned)


def is_in_host(x: jax.Array) -> bool:
    return x.sharding.memory_kind == "pinned_host" and "<host>" in str(jax.typeof(x))


def on_h200():
    """A context that traces for an H200 without one."""
    h200 = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=h200))


def lowered_for_h200(case: Case) -> str:
    """The program of a case, which the kernel alone may serve."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))

    def abstract(position, x):
        kind = "pinned_host" if position in case.host else "device"
        spec = jax.sharding.PartitionSpec()
        sharding = jax.sharding.NamedSharding(mesh, spec, memory_kind=kind)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    args = [jax.tree.map(functools.partial(abstract, i), arg) for i, arg in enumerate(case.args)]
    step = jax.jit(functools.partial(case.call, implementation="pallas"))
    with on_h200():
        return step.trace(*args).lower(lowering_platforms=("cuda",)).as_text()


@contextlib.contextmanager
def unchecked():
    """Within it nothing checks shapes but the code itself, as outside of the test suite."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
