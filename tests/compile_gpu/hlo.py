"""Reads an optimised HLO program: what it writes as a whole, and what it updates in place."""

import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

# These write nothing, or only a part of an array that stays where it is. Where the compiler cannot
# leave it there, it inserts a copy, which is an instruction of its own.
FREE: Final = frozenset(
    "parameter get-tuple-element tuple bitcast while conditional call opt-barrier"
    " optimization-barrier dynamic-update-slice scatter async after-all add-dependency".split()
)
UPDATES: Final = ("dynamic-update-slice", "scatter")
KERNEL: Final = 'custom_call_target="__gpu$xla.gpu.triton"'
HOST_COMPUTE: Final = '_xla_compute_type="host"'

_INSTRUCTION: Final = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.+)$")
_COMPUTATION: Final = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_ARRAY: Final = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")


class Instruction(NamedTuple):
    """One instruction of a computation.

    Attributes:
      name: of its result.
      is_root: whether the computation returns it.
      type: of its result, as text.
      opcode: what it does.
      operands: names.
      line: all of it.
    """

    name: str
    is_root: bool
    type: str
    opcode: str
    operands: tuple[str, ...]
    line: str


Computations = dict[str, dict[str, Instruction]]


def whole_writes(hlo: str, at_least: int) -> list[str]:
    """The writes of whole arrays of `at_least` bytes, each as text: copies, and what is as dear.

    An instruction inside a fusion costs what is read of it, so of a fusion only its results count.
    They are in place if they are updates of its parameters.
    """
    computations = parse(hlo)
    fused = {
        called(instruction)
        for instructions in computations.values()
        for instruction in instructions.values()
        if base(instruction.opcode) == "fusion"
    }
    return [
        f"{instruction.opcode} {array}{origin(instruction)}"
        for name, instructions in computations.items()
        if name not in fused
        for instruction in instructions.values()
        for array in written(instruction, computations)
        if num_bytes(array) >= at_least
    ]


def aliases(hlo: str) -> dict[int, int]:
    """Number of a parameter -> number of the result that it becomes."""
    header = hlo.partition("\n")[0]
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}, (?:may|must)-alias\)", header)
    return {int(parameter): int(result or 0) for result, parameter in pairs}


def num_kernels(hlo: str) -> int:
    """Calls of Triton kernels in a program."""
    return hlo.count(KERNEL)


def num_in_host(hlo: str) -> int:
    """Instructions of a program that compute in host memory, over the bus or on the CPU."""
    return hlo.count(HOST_COMPUTE)


def parse(hlo: str) -> Computations:
    """Computation -> name -> instruction."""
    found: Computations = {}
    current: dict[str, Instruction] = {}
    for line in re.sub(r"/\*.*?\*/", "", hlo).splitlines():
        if begin := _COMPUTATION.match(line):
            current = found.setdefault(begin[1], {})
        elif match := _INSTRUCTION.match(line):
            root, name, rest = match.groups()
            type_, rest = _split_type(rest)
            opcode, _, rest = rest.partition("(")
            operands = re.findall(r"%([\w.-]+)", rest[: _closing(rest)])
            current[name] = Instruction(
                name, bool(root), type_, opcode.strip(), tuple(operands), line.strip()
            )
    return found


def written(instruction: Instruction, computations: Computations) -> Iterator[str]:
    """Yields the type of each array that an instruction outside of fusions writes as a whole."""
    kind = base(instruction.opcode)
    if kind in FREE or instruction.opcode.endswith(("-done", "-update")):
        return
    if kind == "fusion":
        inside = computations[called(instruction)]
        (root,) = (each for each in inside.values() if each.is_root)
        parts = [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]
        for part in parts:
            if not is_update(part, inside):
                yield from arrays(part.type)
        return
    results = result_arrays(instruction)
    kept = set()
    if kind == "custom-call":
        kept = kept_results(instruction)
    yield from (array for i, array in enumerate(results) if i not in kept)


def is_update(instruction: Instruction, inside: dict[str, Instruction]) -> bool:
    """Whether a result of a fusion is one of its parameters, updated in part."""
    updates = 0
    while instruction.opcode in (*UPDATES, "bitcast", "get-tuple-element"):
        updates += instruction.opcode in UPDATES
        instruction = inside[instruction.operands[0]]
    return instruction.opcode == "parameter" and updates > 0


def kept_results(instruction: Instruction) -> set[int]:
    """Numbers of the results of a custom call that are its operands, updated."""
    _, _, pairs = instruction.line.partition("output_to_operand_aliasing={")
    listed = pairs[: _closing(pairs, "{", "}")]
    return {int(index or 0) for index in re.findall(r"\{(\d*)\}: \(\d+, \{\}\)", listed)}


def result_arrays(instruction: Instruction) -> list[str]:
    """The types of an instruction's results; of an asynchronous start, of what it starts."""
    if not instruction.opcode.endswith("-start"):
        return arrays(instruction.type)
    parts = _split_tuple(instruction.type)
    if parts[0].startswith("("):  # (operands), results, context
        return arrays(parts[1])
    return arrays(parts[0])  # a copy: target, source, context


def arrays(type_: str) -> list[str]:
    return [match[0] for match in _ARRAY.finditer(type_)]


def num_bytes(array: str) -> int:
    """Bytes of an array, from its type."""
    match = _ARRAY.search(array)
    assert match is not None, array
    digits = re.search(r"\d+", match[1])
    bits = int(digits[0]) if digits else 8  # pred
    return math.prod(int(size) for size in match[2].split(",") if size) * bits // 8


def base(opcode: str) -> str:
    return opcode.removesuffix("-start")


def called(instruction: Instruction) -> str:
    match = re.search(r"\bcalls=%?([\w.-]+)", instruction.line)
    assert match is not None, instruction.line
    return match[1]


def origin(instruction: Instruction) -> str:
    """Where in the traced function an instruction comes from, as far as it says."""
    match = re.search(r'op_name="([^"]*)"', instruction.line)
    return f" of {match[1]}" if match else ""


def _closing(text: str, opening: str = "(", closing: str = ")") -> int:
    """Position of the bracket that ends the one before `text`."""
    depth = 1
    for position, letter in enumerate(text):
        depth += (letter == opening) - (letter == closing)
        if depth == 0:
            return position
    return len(text)


def _split_type(text: str) -> tuple[str, str]:
    """The type that a text begins with, and the rest."""
    if not text.startswith("("):
        type_, _, rest = text.partition(" ")
        return type_, rest
    end = _closing(text[1:]) + 2
    return text[:end], text[end:]


def _split_tuple(type_: str) -> list[str]:
    """The elements of a tuple type."""
    parts, depth = [""], 0
    for letter in type_[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
