"""Codes in a plan: where a page or a snapshot comes from, and why a match ends where it does."""

from typing import Final

SOURCE_NONE: Final = 0
SOURCE_HOT: Final = 1
SOURCE_COLD: Final = 2
SOURCE_HOST: Final = 3

SNAPSHOT_NONE: Final = 0
SNAPSHOT_DEVICE: Final = 1
SNAPSHOT_HOST: Final = 2

CUT_NONE: Final = 0
CUT_UNKNOWN: Final = 1
CUT_PAGE: Final = 2
CUT_SNAPSHOT: Final = 3
CUT_EMPTY: Final = 4

CUT_TEXTS: Final = {
    CUT_NONE: "matched to the last page that a match may reach",
    CUT_UNKNOWN: "the known prefix ends here",
    CUT_PAGE: "the next page is known but no tier holds a copy",
    CUT_SNAPSHOT: "pages go deeper, but no snapshot lies there",
    CUT_EMPTY: "the prompt is too short for a page and a token left to compute",
}
