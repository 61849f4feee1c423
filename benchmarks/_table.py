"""The short tables that `benchmarks.kernels` ends with: one per op, one line a case."""

from collections.abc import Iterable
from typing import Any, Final

from benchmarks import _report

Row = dict[str, Any]

WORDS: Final = ("error", "unable", "skipped", "note")  # what is said of a row, first one first
MOST_WORDS: Final = 48  # letters
OURS: Final = ("pallas", "reference")


def tables(rows: Iterable[Row]) -> str:
    """All rows: cases of an op by shape, and what is no case of an op by name."""
    by_op: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if "tuning" not in row or row.get("best"):  # of candidates the best alone
            by_op.setdefault(row["op"], {}).setdefault(row["spec"], []).append(row)
    return "\n\n".join(_table(op, list(specs.values())) for op, specs in by_op.items())


def _table(op: str, specs: list[list[Row]]) -> str:
    if any(row["implementation"] == "reference" for spec in specs for row in spec):
        header = (op, "floor us", "pallas us", "floor/us", "single us", "reference us", "")
        return _report.table(header, [_case(spec) for spec in specs])
    lines = [
        (f"{row['spec']} {row['implementation'] or ''}".strip(), *_numbers(row), _words(row))
        for spec in specs
        for row in spec
    ]
    return _report.table((op, "floor us", "us", "floor/us", "single us", ""), lines)


def _case(spec: list[Row]) -> tuple[str, ...]:
    """Both implementations of ours, and whatever others there are, in one line."""
    of = {row["implementation"]: row for row in spec}
    ours, plain = (of.get(name, {}) for name in OURS)
    others = [
        f"{name} {_number(row, 'median_us', 0) or 'unable'}"
        for name, row in of.items()
        if name not in OURS and name is not None
    ]
    said = [word for name in (*OURS, None) if (word := _words(of.get(name, {})))]
    words = ", ".join([*dict.fromkeys(said), *others])
    numbers = _numbers(ours if ours else plain)
    if "median_us" not in ours:
        numbers = (numbers[0], "", "", "")
    return spec[0]["spec"], *numbers, _number(plain, "median_us", 1), words


def _numbers(row: Row) -> tuple[str, str, str, str]:
    return (
        _number(row, "floor_us", 1),
        _number(row, "median_us", 1),
        _number(row, "floor_ratio", 3),
        _number(row, "single_us", 1),
    )


def _number(row: Row, key: str, digits: int) -> str:
    return "" if row.get(key) is None else f"{row[key]:.{digits}f}"


def _words(row: Row) -> str:
    if row.get("equal") is False:
        return f"DIFFERS in {row['num_differing']}" if "num_differing" in row else "DIFFERS"
    return next((row[key][:MOST_WORDS] for key in WORDS if key in row), "")
