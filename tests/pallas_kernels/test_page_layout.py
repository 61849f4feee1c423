"""How a page lies in memory: every plane found by name, every byte carried by the record."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import page_layout as lay
from pallas_kernels.codecs import Encoded
from pallas_kernels.page_layout import PageLayout

FORMATS = (("bf16", "int8_g64"), ("nvfp4_g16", "nvfp4_g16"), ("fp8_e4m3", "bf16"))
LAYOUT = PageLayout.of(FORMATS, num_kv_heads=2, page_size=16, head_dim=128)
SHAPE = (2, 16, 128)


def random_pool(layout: PageLayout, pages: int, seed: int = 0):
    """A pool of random bytes: no two planes, heads or tokens alike."""
    rng = np.random.default_rng(seed)
    leaves = []
    for field in layout.fields:
        size = (pages, *field.shape)
        data = rng.integers(0, 256, (*size, field.dtype.itemsize), np.uint8)
        leaves.append(jnp.asarray(data.view(field.dtype).reshape(size)))
    return lay.unflatten(layout, leaves)


def as_bytes(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def test_planes_of_one_format_are_stacked_in_order_of_use():
    assert [(g.codec.name, g.planes) for g in LAYOUT.groups] == [
        ("bf16", ((0, 0), (2, 1))),
        ("int8_g64", ((0, 1),)),
        ("nvfp4_g16", ((1, 0), (1, 1))),
        ("fp8_e4m3", ((2, 0),)),
    ]
    assert LAYOUT.num_layers == 3
    for layer, kv in itertools.product(range(3), (0, 1)):
        group, plane = LAYOUT.find(layer, kv)
        assert LAYOUT.groups[group].planes[plane] == (layer, kv)
        assert LAYOUT.groups[group].codec.name == FORMATS[layer][kv]


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_does_not_exist_is_an_error(layer):
    with pytest.raises(ValueError, match=rf"layer={layer} is not in \[0, 3\)"):
        LAYOUT.find(layer, 0)


def test_fields_tile_the_record_without_gaps():
    end = 0
    for field in LAYOUT.fields:
        assert field.offset == end
        end += field.num_bytes
    assert end == LAYOUT.record_bytes == sum(LAYOUT.plane_bytes.values())
    by_hand = {"bf16": 256, "int8_g64": 128 + 4, "nvfp4_g16": 64 + 8, "fp8_e4m3": 128 + 4}
    for (layer, kv), size in LAYOUT.plane_bytes.items():
        assert size == by_hand[FORMATS[layer][kv]] * 2 * 16


def test_a_record_holds_every_byte_of_a_page():
    pool = random_pool(LAYOUT, 3)
    for page_id in range(3):
        page = lay.read_page(pool, jnp.int32(page_id))
        record = lay.page_to_record(page)
        assert record.shape == (LAYOUT.record_bytes,) and record.dtype == jnp.uint8
        back = lay.record_to_page(LAYOUT, record)
        assert jax.tree.structure(back) == jax.tree.structure(page)
        wanted = [np.asarray(leaf)[page_id].tobytes() for leaf in jax.tree.leaves(pool)]
        assert as_bytes(back) == as_bytes(page) == wanted


def test_each_plane_is_found_in_the_record_by_its_offsets():
    page = lay.read_page(random_pool(LAYOUT, 1), jnp.int32(0))
    record = np.asarray(lay.page_to_record(page))
    for (layer, kv), field in LAYOUT.plane_fields.items():
        group, plane = LAYOUT.find(layer, kv)
        codes = np.asarray(page[group].codes[plane]).tobytes()
        start = field.codes_offset
        assert record[start : start + len(codes)].tobytes() == codes
        if page[group].scales is not None:
            scales = np.asarray(page[group].scales[plane]).tobytes()
            start = field.scales_offset
            assert record[start : start + len(scales)].tobytes() == scales
        assert field.codec.name == FORMATS[layer][kv]


def test_a_page_is_written_alone():
    pool, other = random_pool(LAYOUT, 4, 1), random_pool(LAYOUT, 1, 2)
    page = lay.read_page(other, jnp.int32(0))
    after = lay.write_page(pool, jnp.int32(2), page)
    for i in range(4):
        wanted = page if i == 2 else lay.read_page(pool, jnp.int32(i))
        assert as_bytes(lay.read_page(after, jnp.int32(i))) == as_bytes(wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "bfloat16", "float32", "int32"])
def test_arrays_become_little_endian_bytes_and_back(dtype):
    x = jnp.asarray(np.random.default_rng(0).integers(-100, 100, (3, 4)), dtype)
    data = lay.to_bytes(x)
    assert np.asarray(data).tobytes() == np.asarray(x).tobytes()
    back = lay.from_bytes(data, x.shape, x.dtype)
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back, x)


def test_an_empty_payload_decodes_to_zeros():
    payload = lay.empty_payload(LAYOUT, 2)
    for group, encoded in zip(LAYOUT.groups, payload, strict=True):
        assert isinstance(encoded, Encoded)
        assert not np.any(jax.jit(group.codec.decode)(encoded))


@functools.partial(jax.jit, static_argnames="layout")
def planes_of(page, *, layout: PageLayout):
    """Float32 K and V of every layer."""
    found = {}
    for group, encoded in zip(layout.groups, page, strict=True):
        decoded = group.codec.decode(encoded)
        found |= {where: decoded[i] for i, where in enumerate(group.planes)}
    return found


@functools.partial(jax.jit, static_argnames="layout")
def page_of(values, *, layout: PageLayout):
    """A page that holds float32 planes, as near as its formats can."""
    return tuple(
        group.codec.encode(jnp.stack([values[where] for where in group.planes]))
        for group in layout.groups
    )


def test_transcoding_moves_every_plane_to_its_own_format():
    target = PageLayout.of(
        (("int4_g16", "e2m1_g64"), ("e2m1_g64", "int4_g16"), ("nvfp4_g16", "int8_g64")), 2, 16, 128
    )
    rng = np.random.default_rng(5)
    values = {
        where: jnp.asarray((1 + n) * rng.normal(size=SHAPE), jnp.float32)
        for n, where in enumerate(itertools.product(range(3), (0, 1)))
    }
    page = page_of(values, layout=LAYOUT)
    move = functools.partial(lay.transcode_page, source=LAYOUT, target=target)
    moved, finite = jax.jit(move)(page)
    assert bool(finite)
    # Encoded from what the source holds, not from what it was made of.
    assert as_bytes(moved) == as_bytes(page_of(planes_of(page, layout=LAYOUT), layout=target))
    for where, plane in planes_of(moved, layout=target).items():
        error = np.mean((plane - values[where]) ** 2) / np.mean(np.asarray(values[where]) ** 2)
        assert error < 0.03, where


@functools.partial(jax.jit, static_argnames="source")
def is_sound(page, *, source):
    return lay.transcode_page(page, source, LAYOUT)[1]


@pytest.mark.parametrize("where", list(itertools.product(range(3), (0, 1))))
def test_one_value_that_is_not_finite_is_seen_in_every_plane(where):
    names = (("bf16", "bf16"),) * 3
    source = PageLayout.of(names, 2, 16, 128)
    values = {w: jnp.ones(SHAPE) for w in itertools.product(range(3), (0, 1))}
    for bad in (np.nan, np.inf, -np.inf):
        values[where] = jnp.ones(SHAPE).at[1, 15, 127].set(bad)
        assert not bool(is_sound(page_of(values, layout=source), source=source))
