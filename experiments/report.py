"""What an experiment leaves: tables on the terminal, JSON lines, and where they are."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any, cast

import jax
from rich.console import Console
from rich.table import Table

import tiercache as tc
from experiments.arms import Measured
from experiments.lossy import Loss
from experiments.setup import Lab
from tiercache.formats import format_text
from tiercache.spec import Formats

LEAST_WIDTH = 120


def console() -> Console:
    """Wide enough for the tables, on a terminal or not."""
    plain = Console()
    return plain if plain.width >= LEAST_WIDTH else Console(width=LEAST_WIDTH)


def record(
    module: str, lab: Lab, measured: Measured, loss: Loss, equal: bool, **more: Any
) -> dict[str, Any]:
    """The JSON object of one measured request."""
    report, spec = measured.report, lab.arms[measured.arm].spec
    counters = measured.counters
    return {
        "experiment": module.rsplit(".", 1)[-1],
        "arm": measured.arm,
        "exact": measured.arm != "lossy",
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "resumable_tokens": measured.resumable_tokens,
        "kv_tokens": measured.kv_tokens,
        "ttft_s": report.ttft_s,
        "match_s": report.match_s,
        "restore_s": report.restore_s,
        "prefill_s": report.prefill_s,
        "outputs_equal": equal,
        **loss._asdict(),
        "restored_pages": {
            "device": report.from_hot, "host": report.from_host, "cold": report.from_cold,
        },
        "restored_snapshot": report.snapshot,
        "cut": report.cut,
        "evictions": evictions(counters),
        "tombstones": counters["tombstones"],
        "snapshots_saved": counters["snapshots_saved"],
        "snapshots_dropped": counters["snapshots_dropped"],
        "bytes_moved": measured.traffic,
        "bytes_moved_measured": measured.traffic_measured,
        "counters": counters,
        "counters_measured": measured.counters_measured,
        "refusals": measured.refusals,
        "restore_kernels": measured.num_kernels,
        "outputs": report.outputs,
        "residency": [step._asdict() for step in measured.residencies],
        "spec": _spec_numbers(spec),
        **more,
        **_origin(module),
    }  # fmt: skip


def evictions(counters: dict[str, int]) -> int:
    """Pages that left the device: tombstones, those packed into cold slots, those dropped."""
    return counters["tombstones"] + counters["pages_to_cold"] + counters["pages_dropped"]


def _spec_numbers(spec: tc.CacheSpec) -> dict[str, Any]:
    names = (
        "num_pages", "page_size", "max_pages", "num_snapshots", "num_host_pages",
        "num_host_snapshots", "num_cold_slots", "num_layers", "num_kv_heads", "head_dim", "policy",
    )  # fmt: skip
    return {
        **{name: getattr(spec, name) for name in names},
        "hot_formats": format_text(cast(Formats, spec.hot_formats)),
        "cold_formats": format_text(cast(Formats, spec.cold_formats)),
        "bytes_per_page": tc.bytes_per_page(spec, "device"),
        "bytes_per_cold_slot": tc.bytes_per_page(spec, "cold"),
        "bytes_per_snapshot": tc.bytes_per_snapshot(spec),
    }


def _origin(module: str) -> dict[str, Any]:
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "command": shlex.join(["python", "-m", module, *_without_folder(sys.argv[1:])]),
    }


def _without_folder(arguments: list[str]) -> list[str]:
    """The arguments that a result depends on: not where it was written."""
    if "--out" not in arguments:
        return arguments
    place = arguments.index("--out")
    return arguments[:place] + arguments[place + 2 :]


def write_lines(path: Path, objects: list[dict[str, Any]]):
    """JSON lines, in place of the last run's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))


def latency_table(objects: list[dict[str, Any]], title: str) -> Table:
    """What was cached and what that did to the time to the first token."""
    table = _table(
        title, "arm", "prompt\ntokens", "cached\ntokens", "resumable\ntokens", "KV known\ntokens",
        "TTFT\nms", "match\nms", "restore\nms", "prefill\nms", "outputs\nas cold",
    )  # fmt: skip
    for one in objects:
        times = (f"{1e3 * one[f'{k}_s']:.1f}" for k in ("ttft", "match", "restore", "prefill"))
        length = len(one["outputs"])
        equal = "yes" if one["outputs_equal"] else f"first {one['tokens_equal']} of {length}"
        table.add_row(
            _name(one), _number(one["prompt_tokens"]),
            _number(one["cached_tokens"]), _number(one["resumable_tokens"]),
            _number(one["kv_tokens"]), *times, "control" if one["arm"] == "cold" else equal,
        )  # fmt: skip
    return table


def traffic_table(objects: list[dict[str, Any]]) -> Table:
    """Where copies went, over the whole arm; restored pages are the measured request's."""
    table = _table(
        "What moved", "arm", "to\nhost", "from\nhost", "to cold\nslots",
        "pages\nevicted", "tomb-\nstones", "snaps\nsaved", "snaps\nlost",
        "pages resumed from\ndevice / host / cold", "snap\nfrom",
    )  # fmt: skip
    for one in objects:
        moved, pages = one["bytes_moved"], one["restored_pages"]
        table.add_row(
            _name(one), *(_bytes(moved[k]) for k in
                          ("device_to_host", "host_to_device", "hot_to_cold")),
            _number(one["evictions"]), _number(one["tombstones"]), str(one["snapshots_saved"]),
            str(one["snapshots_dropped"]),
            f"{pages['device']} / {pages['host']} / {pages['cold']}", one["restored_snapshot"],
        )  # fmt: skip
    return table


def loss_table(objects: list[dict[str, Any]]) -> Table:
    """How far each arm's numbers are from the control's."""
    table = _table(
        "Beside the cold run", "arm", "KL(cold || arm)\nnats", "largest logit\ndifference",
        "tokens equal", "attention output error\nper layer, relative L2",
    )  # fmt: skip
    for one in objects:
        if one["arm"] == "cold":
            continue
        errors = one["attention_error"]
        table.add_row(
            _name(one),
            f"{one['logit_kl']:.3g}", f"{one['logit_max_diff']:.3g}",
            f"{one['tokens_equal']} of {len(one['outputs'])}",
            ", ".join(f"{e:.3g}" for e in errors) if errors else "exact copies",
        )  # fmt: skip
    return table


def _name(one: dict[str, Any]) -> str:
    return one["arm"] if one["exact"] else f"{one['arm']} *"


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _number(value: int) -> str:
    return f"{value:,}"


def _bytes(value: int) -> str:
    return f"{value / 1e6:.1f} MB" if value < 1e9 else f"{value / 1e9:.2f} GB"
