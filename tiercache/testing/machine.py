"""`CacheMachine`: Hypothesis drives the cache and its reference through all verbs and tiers.

    class TestMyCache(CacheMachine.TestCase):
        settings = settings(max_examples=50, stateful_step_count=40)

After every rule each info, each number of the state, every byte that somebody owns and the rules of
`check` are compared with the reference, and free storage has been overwritten after every call.
"""

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tiercache.spec import CacheSpec
from tiercache.testing.driver import LIMIT, STEPS, Driver, Step, allowed_steps
from tiercache.testing.lockstep import Lockstep
from tiercache.testing.reference import Codecs
from tiercache.testing.specs import WINDOW
from tiercache.testing.strategies import symbols

_NUMBERS = st.integers(0, LIMIT - 1)


class CacheMachine(RuleBasedStateMachine):
    """One rule per step of `tiercache.testing.driver.STEPS`. Subclass it for another spec.

    Attributes:
      spec: of the cache; all examples share one compiled program. Rules whose verbs it does not
        allow never run. It needs two rows and two pages a row at least, and a lease beyond those
        of the rows.
      codecs: of the reference; None for the library's.
    """

    spec: ClassVar[CacheSpec] = WINDOW
    codecs: ClassVar[Codecs | None] = None

    def __init__(self):
        super().__init__()
        self.driver = Driver(Lockstep(self.spec, codecs=self.codecs))

    @property
    def state(self):
        return self.driver.lockstep.state

    def run(self, step: Step):
        """Takes a step, and compares everything."""
        self.driver.run(step)
        self.driver.lockstep.flush()


def _add_rule(name: str):
    @precondition(lambda self: name in allowed_steps(self.spec))
    @rule(a=_NUMBERS, b=_NUMBERS, c=_NUMBERS, pages=symbols())
    def take(self, a, b, c, pages):
        self.run(Step(name, a, b, c, (*pages, *[0] * self.spec.max_pages)[: self.spec.max_pages]))

    take.__name__ = name
    setattr(CacheMachine, name, take)


for _name in STEPS:
    _add_rule(_name)
