"""Which items go where: two lists of ids, of which only some pairs exist."""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from pallas_kernels import dispatch, launch

MOST_IN_KERNEL: Final = 8192  # ids that one program holds
NOWHERE: Final = 2**30  # an id past every end


class Pairs(NamedTuple):
    """Pairs of ids that exist, first ones first.

    Attributes:
      number: how many there are.
      sources, targets: their ids; past `number`, anything.
      places: where in the lists each stood; past `number`, past the lists' end.
      flags: ones, in the order of the lists: for a kernel to clear by `places`.
    """

    number: Int32[Array, ""]
    sources: Int32[Array, "n"]
    targets: Int32[Array, "n"]
    places: Int32[Array, "n"]
    flags: Int32[Array, "n"]

    def operands(self) -> list[Array]:
        """What a kernel that goes through the pairs takes first: number, sources, targets."""
        return [self.number.reshape(1), self.sources, self.targets]


def existing(
    source_ids: Int32[Array, "n"], num_sources: int, target_ids: Int32[Array, "n"], num_targets: int
) -> Pairs:
    """The pairs of which both ids exist, in order: sentinels are skipped, never clamped.

    Raises:
      ValueError: while tracing, if the lists have different lengths.
    """
    if source_ids.shape != target_ids.shape:
        raise ValueError(f"{source_ids.shape} sources for {target_ids.shape} targets.")
    if dispatch.platform() == "gpu" and source_ids.size <= MOST_IN_KERNEL:
        return compacted_in_kernel(source_ids, num_sources, target_ids, num_targets)
    exist = _exist(source_ids, num_sources) & _exist(target_ids, num_targets)
    rank = jnp.where(exist, jnp.cumsum(exist, dtype=jnp.int32) - 1, NOWHERE)
    places = jnp.full(source_ids.shape, NOWHERE, jnp.int32)
    places = places.at[rank].set(jnp.arange(rank.shape[0], dtype=jnp.int32), mode="drop")
    return Pairs(
        jnp.sum(exist, dtype=jnp.int32),
        source_ids.at[places].get(mode="fill", fill_value=0),
        target_ids.at[places].get(mode="fill", fill_value=0),
        places,
        jnp.ones(places.shape, jnp.int32),
    )


def _exist(ids: Int32[Array, "n"], number: int) -> Bool[Array, "n"]:
    return (ids >= 0) & (ids < number)


def compacted_in_kernel(
    source_ids: Int32[Array, "n"], num_sources: int, target_ids: Int32[Array, "n"],
    num_targets: int, *, interpret: bool = False,
) -> Pairs:  # fmt: skip
    """`existing` as one small kernel: as jnp it is six, which take longer than a small copy."""
    size = source_ids.shape[0]
    width = 1 << (size - 1).bit_length()

    def body(sources_ref, targets_ref, *refs):
        number_ref, new_sources_ref, new_targets_ref, places_ref, flags_ref = refs
        place = launch.iota((width,), 0)
        within = place < size
        read_from = jnp.minimum(place, size - 1)
        source = launch.read(sources_ref.at[read_from], within)
        target = launch.read(targets_ref.at[read_from], within)
        exist = within & _exist(source, num_sources) & _exist(target, num_targets)
        count = exist.astype(jnp.int32)
        before, number = jnp.cumsum(count), jnp.sum(count)
        # Those that exist, then the others: a permutation, so that no two write to one place.
        rank = jnp.where(exist, before - 1, number + place - before)
        launch.write(number_ref.at[jnp.int32(0)], number)
        launch.write(new_sources_ref.at[rank], source)
        launch.write(new_targets_ref.at[rank], target)
        launch.write(places_ref.at[rank], jnp.where(exist, place, NOWHERE))
        launch.write(flags_ref.at[place], jnp.ones_like(place))

    one, many = jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((width,), jnp.int32)
    number, *lists = launch.kernel_call(
        body, [source_ids, target_ids], 0, grid=(1,), name="existing_pairs", num_warps=4,
        new=(one, many, many, many, many), interpret=interpret,
    )  # fmt: skip
    return Pairs(number[0], *(x[:size] for x in lists))
