"""Keys: chained, spread, and of their own for each namespace."""

import jax
import jax.numpy as jnp
import numpy as np

from tiercache import prefix
from tiercache.prefix import keys, lookup

PAGE_SIZE, NUM_PAGES = 16, 4096
SALTS = [prefix.Namespace(tenant=name).lanes() for name in "ab"]
jit_keys = jax.jit(prefix.prefix_keys, static_argnames="page_size")


def keys_of(pages, namespace=SALTS[0]):
    flat = np.asarray(pages, np.int32).reshape(-1)
    return np.asarray(jit_keys(jnp.asarray(flat), namespace, page_size=PAGE_SIZE))


def words(keys):
    return keys[:, 0].astype(np.uint64) << np.uint64(32) | keys[:, 1]


def test_the_key_of_a_prefix_depends_on_every_page_up_to_it_and_none_after():
    rng = np.random.default_rng(0)
    pages = rng.integers(0, 150_000, (NUM_PAGES, PAGE_SIZE))
    before = keys_of(pages)
    for place in (0, 1, 2000, NUM_PAGES - 1):
        changed = pages.copy()
        changed[place, 5] ^= 1
        after = keys_of(changed)
        np.testing.assert_array_equal(before[:place], after[:place])
        assert np.all(before[place:] != after[place:])
    assert np.all(before != keys_of(pages, SALTS[1]))


def test_pages_that_change_places_change_the_key():
    pages = np.repeat(np.arange(NUM_PAGES), PAGE_SIZE).reshape(NUM_PAGES, PAGE_SIZE)
    before = keys_of(pages)
    for distance in (1, 2, 1024, 2048):
        swapped = pages.copy()
        swapped[[7, 7 + distance]] = swapped[[7 + distance, 7]]
        assert np.all(before[7 + distance :] != keys_of(swapped)[7 + distance :])


def test_nearly_equal_pages_do_not_collide_and_fill_buckets_evenly():
    counts = np.arange(NUM_PAGES)
    same = np.zeros((NUM_PAGES, PAGE_SIZE), np.int32)
    counting = same + np.where(np.arange(PAGE_SIZE) == 3, counts[:, None], 9)
    for pages in (same, counting, counting * 65536):
        got = keys_of(pages)
        assert len(np.unique(words(got))) == NUM_PAGES
        index = jax.eval_shape(
            lambda: prefix.init_index(
                num_nodes=NUM_PAGES, page_size=PAGE_SIZE, max_pages=1, num_leases=1
            )
        )
        buckets = np.asarray(lookup.bucket_of(index, jnp.asarray(got)))
        load = np.bincount(buckets, minlength=2 * NUM_PAGES)
        assert load.max() <= 7  # 4,096 keys in 8,192 buckets of eight ways
        assert 0.35 < np.mean(load > 0) < 0.44  # 1 - exp(-1/2) = 0.39


def test_page_hashes_are_the_products_they_are_said_to_be():
    rng = np.random.default_rng(1)
    pages = rng.integers(0, 2**31, (5, PAGE_SIZE)).astype(np.int32)
    multipliers = keys._multipliers(PAGE_SIZE).astype(np.uint64)
    expected = (pages.astype(np.uint64) @ multipliers).astype(np.uint32)
    np.testing.assert_array_equal(keys.page_hashes(jnp.asarray(pages)), expected.T)


def test_rows_of_long_pages_are_compared_throughout():
    for size in (16, 64, 256, 512):
        rows = jnp.zeros((4, size), jnp.int32)
        others = rows.at[1].set(1).at[2, size - 1].set(5).at[3, 0].set(-1)
        assert lookup._rows_equal(rows, others).tolist() == [True, False, False, False]
