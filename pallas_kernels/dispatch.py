"""Picks one implementation of an op: the first able one, or the one that was named."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from pallas_kernels.banks import default_device


def call(
    implementations: Mapping[str, Callable], implementation: str | None, *args, **kwargs
) -> Any:
    """Calls an implementation of an op.

    Args:
      implementations: by name, fastest first; the reference runs anywhere and ends the list. One
        that cannot serve a call raises `NotImplementedError` with the reason, while tracing.
      implementation: None takes the first able one; a name takes that one.
      *args, **kwargs: of the op.

    Raises:
      ValueError: an unknown name; it names those that exist.
      NotImplementedError: the named implementation, or every one, cannot serve the call.
    """
    if implementation is not None:
        if implementation not in implementations:
            raise ValueError(
                f"implementation={implementation!r} is not one of {list(implementations)}."
            )
        return implementations[implementation](*args, **kwargs)
    reasons = []
    for name, function in implementations.items():
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            reasons.append(f"{name}: {error}")
    raise NotImplementedError("; ".join(reasons))


def platform() -> str:
    """What is traced for: "gpu", "cpu" or "tpu".

    The abstract device of a mesh in context comes first, so that a machine without a GPU can build
    for one; then the device that JAX puts new arrays on. Arrays that are committed elsewhere need
    `jax.default_device` to say so.
    """
    described = jax.sharding.get_abstract_mesh().abstract_device
    if described is not None and described.platform is not None:
        return described.platform
    return default_device().platform


def on_gpu(op: str, kernel: Callable) -> Callable:
    """`kernel`, which raises NotImplementedError, while tracing, unless `platform()` is a GPU."""

    def call(*args, **kwargs):
        if platform() != "gpu":
            raise NotImplementedError(f"the kernel of {op} runs on GPUs, not on a {platform()}.")
        return kernel(*args, **kwargs)

    return call
