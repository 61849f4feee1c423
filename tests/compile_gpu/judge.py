"""Says what is wrong with a compiled program."""

from typing import Final, NamedTuple

from tests.compile_gpu import hlo
from tests.compile_gpu.programs import Compiled, Program

SHOWN: Final = 3  # copies of one program


class Outcome(NamedTuple):
    """What became of a program.

    Attributes:
      name: of the program.
      is_control: whether it had to copy.
      problems: what is wrong, in words; empty if all is well.
      seconds: that it took to trace, lower and compile.
      temporary, host_temporary: bytes of scratch in either memory.
      copies: of whole pools and banks.
      aliased: bytes of donated pools and banks that the results take over.
      state: bytes of donated pools and banks.
      kernels: calls of them.
      in_host: instructions that compute in host memory, other than by copying.
    """

    name: str
    is_control: bool
    problems: tuple[str, ...]
    seconds: float = 0.0
    temporary: int = 0
    host_temporary: int = 0
    copies: tuple[str, ...] = ()
    aliased: int = 0
    state: int = 0
    kernels: int = 0
    in_host: int = 0


def judge(program: Program, compiled: Compiled) -> Outcome:
    """Reads the compiled program."""
    became = hlo.aliases(compiled.hlo)
    kept = {n: size for n, (result, size) in program.kept.items() if became.get(n) == result}
    found = Outcome(
        program.name,
        program.is_control,
        problems=(),
        temporary=compiled.temporary,
        host_temporary=compiled.host_temporary,
        copies=tuple(hlo.whole_writes(compiled.hlo, program.limit)),
        aliased=sum(kept.values()),
        state=sum(size for _, size in program.kept.values()),
        kernels=hlo.num_kernels(compiled.hlo),
        in_host=hlo.num_in_host(compiled.hlo),
    )
    return found._replace(problems=tuple(problems(program, found)))


def problems(program: Program, found: Outcome) -> list[str]:
    """What is wrong, in words."""
    if program.is_control:
        return [] if found.copies else ["a control that copies nothing: a copy would not be seen"]
    wrong = [f"writes all of {copy}" for copy in found.copies[:SHOWN]]
    if len(found.copies) > SHOWN:
        wrong.append(f"and {len(found.copies) - SHOWN} more")
    if found.aliased < found.state:
        wrong.append(f"{found.state - found.aliased:,} bytes of pools and banks are not aliased")
    for memory, size in (("device", found.temporary), ("host", found.host_temporary)):
        if size >= program.limit:
            wrong.append(f"{size:,} bytes of scratch in {memory} memory, half a pool or more")
    if found.in_host:
        wrong.append(f"{found.in_host} instructions compute in host memory")
    if program.wants_kernels and not found.kernels:
        wrong.append("calls no kernel")
    return wrong
