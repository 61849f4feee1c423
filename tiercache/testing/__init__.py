"""What tests of the library and of its users are built from. Ships in the wheel.

Assertions, poison and the reference need what the library needs. `tiercache.testing.machine` and
`tiercache.testing.strategies` need Hypothesis: `pip install tiercache[testing]`. See
docs/testing.md.
"""

from tiercache.testing.assertions import (
    assert_compiles_once,
    assert_conserved,
    assert_invariants,
    assert_no_pool_copy,
    assert_outputs_equal_cold,
)
from tiercache.testing.driver import Driver, Step, random_step
from tiercache.testing.lockstep import Lockstep
from tiercache.testing.poison import free_storage, poison_free
from tiercache.testing.reference import ReferenceCache, differences
from tiercache.testing.session import Session
from tiercache.testing.traces import Trace, replay, shrink

__all__ = [
    "Driver",
    "Lockstep",
    "ReferenceCache",
    "Session",
    "Step",
    "Trace",
    "assert_compiles_once",
    "assert_conserved",
    "assert_invariants",
    "assert_no_pool_copy",
    "assert_outputs_equal_cold",
    "differences",
    "free_storage",
    "poison_free",
    "random_step",
    "replay",
    "shrink",
]
