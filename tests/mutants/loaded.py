"""A pytest plugin: fails the run unless the mutated file is the one that was imported.

Hypothesis stops at the first example that fails: nobody reads the smallest.
"""

import os
import sys
from pathlib import Path
from typing import Final

import hypothesis
from hypothesis import Phase

NOT_LOADED: Final = 97  # exit status


def pytest_sessionstart():
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases)
    hypothesis.settings.load_profile("mutants")


def pytest_sessionfinish(session):
    mutated = os.environ.get("MUTATED_FILE")
    if mutated is None:
        return
    parts = Path(mutated).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = sys.modules.get(name)
    wanted = Path(os.environ["MUTATED_ROOT"], mutated).resolve()
    found = None if module is None else Path(str(module.__file__)).resolve()
    if found != wanted:
        print(f"{name} was imported from {found}, not from {wanted}.")
        session.exitstatus = NOT_LOADED
