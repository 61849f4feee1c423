"""Everything there is to compile, by name, and the compiling of one."""

import functools
import time

from tests.compile_gpu import controls, kernels, transitions
from tests.compile_gpu.judge import Outcome, judge
from tests.compile_gpu.programs import Program
from tests.compile_gpu.target import compile_for_h200


@functools.cache
def programs() -> dict[str, Program]:
    """Name -> everything there is to compile."""
    everything = [*transitions.programs(), *kernels.programs(), *controls.programs()]
    found = {program.name: program for program in everything}
    if len(found) < len(everything):
        raise ValueError("two programs have one name.")
    return found


def outcome_of(name: str) -> Outcome:
    """Compiles the program of that name. Called in a process of its own."""
    program = programs()[name]
    start = time.perf_counter()
    try:
        compiled = compile_for_h200(program.step, program.args, program.donated)
    except Exception as error:  # whatever the compiler raises is what there is to report
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        found = Outcome(name, program.is_control, (f"does not compile: {text}",))
    else:
        found = judge(program, compiled)
    return found._replace(seconds=time.perf_counter() - start)
