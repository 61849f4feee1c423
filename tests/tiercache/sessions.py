"""Sessions with a cache and its reference, and what tests ask of them."""

import jax

from tests.pallas_kernels.codecs import oracle
from tiercache.spec import CacheSpec
from tiercache.testing import Lockstep, Session
from tiercache.testing.calls import NAMESPACES, prompt_tokens
from tiercache.testing.specs import WINDOW

PAGE = WINDOW.page_size


def session(spec: CacheSpec = WINDOW, *, at_once: bool = True, key: int = 0, **options) -> Session:
    """A session whose reference has the codecs of the oracle; options are those of `Lockstep`."""
    return Session(Lockstep(spec, codecs=oracle, **options), at_once=at_once, key=key)


def known(both: Session, pages, depths, *, row_id: int = 0):
    """Computes a prompt of whole pages, publishes it with snapshots at some depths, and ends."""
    assert both.fill(row_id, len(pages) * PAGE)
    both.publish(row_id, pages, depths)
    both.release(row_id)


def page_bytes(both: Session, page_id: int) -> list[bytes]:
    """Every leaf of a device page: codes and scales of each format."""
    leaves = jax.tree.leaves(jax.device_get(both.state.pages.payload))
    return [leaf[page_id].tobytes() for leaf in leaves]


def path(both: Session, pages):
    """Nodes of a prompt's pages."""
    tokens = prompt_tokens(both.symbols(pages), both.spec)
    return both.reference.index.walk(tokens, len(pages), NAMESPACES[0])
