"""`ReferenceCache`: all verbs together."""

from tiercache.testing.reference.attention import AttentionVerb
from tiercache.testing.reference.prefixes import PrefixVerbs
from tiercache.testing.reference.rows import RowVerbs
from tiercache.testing.reference.tiers import TierVerbs


class ReferenceCache(RowVerbs, PrefixVerbs, TierVerbs, AttentionVerb):
    """The whole cache in plain Python: see the package's docstring.

    Args of the methods are those of the verbs, as numbers and NumPy arrays; `append` and `attend`
    take the rows and counts of a step in place of a view.
    """

    def set_live(self, row_id: int, leaves):
        """What a model does after a step: the row's recurrent state is `leaves` now."""
        self.rows[row_id].live = tuple(leaves)

    def forget_unowned(self):
        """What `poison_free` does: the state of a row that holds nothing is nobody's."""
        for row in self.rows:
            if row.is_empty:
                row.live = None
