"""Picks one implementation of an op: the first able one, or the one that was named."""

from collections.abc import Callable, Mapping
from typing import Any


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
