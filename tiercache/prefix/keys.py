"""Keys of all page prefixes of a prompt at once.

A page is hashed on its own, and its hash is mixed with its place into a step `k -> k + step` of a
32-bit word. The key of a prefix is the composition of its steps, applied to the namespace's key:
composition is associative, so one prefix sum gives all keys. Two lanes do this with constants of
their own. Keys only propose candidates; tokens and parents decide.
"""

from typing import Final

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32, UInt32

_GOLDEN: Final = 0x9E3779B9
_SEEDS: Final = (0x243F6A88, 0x85A308D3)


def mix(words: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A bijection of 32-bit words in which each input bit moves about half of the output bits."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * jnp.uint32(0x846CA68B)
    return words ^ (words >> 16)


def _multipliers(size: int) -> np.ndarray:
    """Odd `uint32[size, 2]` constants: a Weyl sequence per lane, mixed."""
    steps = np.arange(1, size + 1, dtype=np.uint32)[:, None] * np.uint32(_GOLDEN)
    words = steps + np.array(_SEEDS, np.uint32)
    words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * np.uint32(0x846CA68B)
    return (words ^ (words >> 16)) | np.uint32(1)


def page_hashes(pages: Int32[Array, "page token"]) -> UInt32[Array, "2 page"]:
    """Two independent hashes of each page's tokens: multilinear, modulo 2**32."""
    multipliers = _multipliers(pages.shape[1]).view(np.int32)
    # One matrix-vector product a lane: the CPU backend vectorizes those, and no matrix of integers.
    hashes = jnp.stack([pages @ jnp.asarray(multipliers[:, lane]) for lane in range(2)])
    return lax.bitcast_convert_type(hashes, jnp.uint32)


def namespace_key(namespace: UInt32[Array, "16"]) -> UInt32[Array, "2"]:
    """The key of a namespace root, from which the keys of its prefixes go on."""
    lanes = lax.bitcast_convert_type(namespace, jnp.int32)
    return ~mix(page_hashes(lanes[None])[:, 0])


def chain(
    hashes: UInt32[Array, "2 page"], first_key: UInt32[Array, "2"]
) -> UInt32[Array, "page 2"]:
    """Keys of all prefixes, from page hashes and the key of what lies before the first page."""
    places = jnp.arange(1, hashes.shape[1] + 1, dtype=jnp.uint32) * jnp.uint32(_GOLDEN)
    steps = mix(hashes + places)
    return (jnp.cumsum(steps, axis=1, dtype=jnp.uint32) + first_key[:, None]).T


def prefix_keys(
    tokens: Int32[Array, "tokens"], namespace: UInt32[Array, "16"], *, page_size: int
) -> UInt32[Array, "page 2"]:
    """Keys of every page prefix of a prompt.

    Args:
      tokens: whole pages of token ids, flat.
      namespace: `Namespace.lanes()`.
      page_size: tokens a page; static.

    Returns:
      One key a page: that of the prefix that ends with it.
    """
    return chain(page_hashes(tokens.reshape(-1, page_size)), namespace_key(namespace))
