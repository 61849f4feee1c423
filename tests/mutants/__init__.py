"""Seeded faults: each is the real code with one guard taken out, and the test that then fails.

`python -m tests.mutants` tries them all. A mutant that survives is a guard that nothing tests.
"""

from tests.mutants import kernels, prefixes, rows, serving, tiers
from tests.mutants.base import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *rows.MUTANTS,
    *prefixes.MUTANTS,
    *tiers.MUTANTS,
    *kernels.MUTANTS,
    *serving.MUTANTS,
)

__all__ = ["MUTANTS", "Mutant"]
