"""What a mutant is."""

from typing import Final, NamedTuple

TIERCACHE: Final = "tests/tiercache/test_"
KERNELS: Final = "tests/pallas_kernels/test_"
PAGE_LAYOUT: Final = KERNELS + "page_layout.py"
RULES: Final = TIERCACHE + "rules.py::test_"
SHARING: Final = TIERCACHE + "sharing.py::test_"
REFUSALS: Final = TIERCACHE + "refusals.py::test_"
ATTEND: Final = TIERCACHE + "attend.py::test_"
PREFIX: Final = "tests/tiercache/prefix/test_"
CODECS: Final = "tests/pallas_kernels/codecs/test_codecs.py::test_"


class Mutant(NamedTuple):
    """One edit of the code that a test must notice.

    Attributes:
      name: what the edit does, in a few words; unique.
      file: the edited file, from the repository's root.
      old: its text, found there exactly once.
      new: what takes its place.
      test: id of the test that fails then.
      why: what the guard is for.
    """

    name: str
    file: str
    old: str
    new: str
    test: str
    why: str
