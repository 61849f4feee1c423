"""The cache once more, in plain Python and NumPy: what every verb must do, obviously and slowly.

`ReferenceCache(spec)` has the verbs of the library as methods. Rows are lists, prefixes are a tree
of objects, and tiers are dicts from id to bytes. A method changes the cache in place and returns
the same `Info` as the verb, with plain numbers in it. `differences(reference, state)` compares it
with a state of the library: every id, count and counter, and every byte that somebody owns.

Nothing here is compiled, and nothing is shared with the verbs but names of things: the spec, the
codes of `Reason`, and the `Info` types.
"""

from tiercache.testing.reference.attention import Attended
from tiercache.testing.reference.cache import ReferenceCache
from tiercache.testing.reference.compare import differences, info_differences
from tiercache.testing.reference.index import Node
from tiercache.testing.reference.storage import Codecs, LibraryCodecs, Page

__all__ = [
    "Attended",
    "Codecs",
    "LibraryCodecs",
    "Node",
    "Page",
    "ReferenceCache",
    "differences",
    "info_differences",
]
