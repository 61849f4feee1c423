"""What the check prints."""

from collections.abc import Mapping, Sequence

from tests.compile_gpu.judge import Outcome

COLUMNS = ("", "seconds", "device scratch", "host scratch", "copies", "aliased / state", "kernels")


def found(chosen: int, total: int, cases: Mapping[str, int]) -> str:
    listed = ", ".join(f"{op} {count}" for op, count in cases.items()) or "none yet"
    return f"{chosen} of {total} programs; kernel cases: {listed}"


def progress(outcome: Outcome, number: int, total: int) -> str:
    verdict = "FAILED" if outcome.problems else "ok"
    return f"{number:3} of {total}  {verdict:6} {outcome.seconds:5.1f} s  {outcome.name}"


def table(outcomes: Sequence[Outcome]) -> str:
    """A line per program; scratch and state in bytes."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for each in outcomes:
        aliased = f"{each.aliased:,} / {each.state:,}"
        numbers = f"{each.temporary:,}", f"{each.host_temporary:,}", f"{len(each.copies)}"
        rows.append((each.name, f"{each.seconds:.1f}", *numbers, aliased, f"{each.kernels}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(["", *lines, ""])


def verdict(outcomes: Sequence[Outcome], without: Sequence[str]) -> str:
    """What failed, then the counts."""
    lines = [f"{each.name}: {problem}" for each in outcomes for problem in each.problems]
    lines += [f"pallas_kernels/{op}: no case of it was found" for op in without]
    if not outcomes:
        lines.append("Nothing to compile has that in its name.")
    controls = [each for each in outcomes if each.is_control]
    others = [each for each in outcomes if not each.is_control]
    if controls:
        lines.append(f"{num_good(controls)} of {len(controls)} controls copy, as they have to")
    good = num_good(others)
    end = f"{good} of {len(others)} compiled for an NVIDIA H200"
    if others or not controls:
        lines.append(f"{end}; no copy of a pool or bank" if good == len(others) > 0 else end)
    return "\n".join(lines)


def num_good(outcomes: Sequence[Outcome]) -> int:
    return sum(not each.problems for each in outcomes)


def is_bad(outcomes: Sequence[Outcome], without: Sequence[str]) -> bool:
    return not outcomes or bool(without) or num_good(outcomes) < len(outcomes)
