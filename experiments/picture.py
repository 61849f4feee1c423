"""Pictures: what was resident in which tier over time, and where the time to a first token went."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the backend is chosen)
from matplotlib.patches import Rectangle  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

# Okabe-Ito: told apart by people who cannot tell red from green. Lower tiers are lighter, hatched.
BANDS = (
    ("device", "conversation", "#0072B2", ""),
    ("device", "others", "#D55E00", ""),
    ("cold", "conversation", "#4FA3D9", "xx"),
    ("cold", "others", "#EE9A5B", "xx"),
    ("host", "conversation", "#A9D3EE", "//"),
    ("host", "others", "#F8D3B5", "//"),
)
PHASES = (("match", "#999999"), ("restore", "#CC79A7"), ("prefill", "#009E73"))
ROW_NAMES = {"cold": "cold run"}
ARM_TITLES = {
    "off": "tier off: what leaves the device is gone",
    "on": "tier on: what leaves the device goes to host memory",
    "lossy": "lossy: pages leave for 4-bit cold slots, all of them before it goes on",
}


def draw(path: Path, objects: list[dict[str, Any]], title: str):
    """Writes the picture of one run: one band chart per arm, and the bars of all arms."""
    arms = [one for one in objects if len(one["residency"]) > 1]
    figure = plt.figure(figsize=(15, 1.4 + 3.4 * len(arms)), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[2.1, 1])
    left, right = halves
    grid = left.add_gridspec(2 * len(arms), 1, height_ratios=[2.4, 1] * len(arms))
    tops = {
        what: max(_total(step[what]) for one in arms for step in one["residency"])
        for what in ("pages", "snapshots")
    }
    for number, one in enumerate(arms):
        pages = left.add_subplot(grid[2 * number])
        snapshots = left.add_subplot(grid[2 * number + 1], sharex=pages)
        _bands(pages, one, "pages", 1.2 * tops["pages"])
        _bands(snapshots, one, "snapshots", 1.45 * tops["snapshots"])
        pages.tick_params(labelbottom=False)
        pages.set_title(ARM_TITLES[one["arm"]], loc="left", fontsize=11, fontweight="bold")
        _mark_pool(pages, one)
        _mark_measured(pages, one)
        _mark_snapshots(snapshots, one)
    above, below = right.subplots(2, 1)
    _times(above, objects)
    _facts(below, objects)
    handles, labels = _legend(arms)
    left.legend(
        handles, labels, loc="outside lower left", ncols=len(labels), fontsize=9, frameon=False,
        columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
    figure.suptitle(title, fontsize=13, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _total(counts: dict[str, dict[str, int]]) -> int:
    return sum(sum(owners.values()) for owners in counts.values())


def _bands(axes, one: dict[str, Any], what: str, top: float):
    """Stacked counts, one step wide each; snapshots with the conversation's few at the bottom."""
    steps = one["residency"]
    edges = [i - 0.5 for i in range(len(steps) + 1)]
    floor = [0] * len(steps)
    bands = BANDS if what == "pages" else sorted(BANDS, key=lambda band: band[1])
    for tier, owner, color, hatch in bands:
        if tier not in steps[0][what]:
            continue
        roof = [f + step[what][tier][owner] for f, step in zip(floor, steps, strict=True)]
        axes.fill_between(
            edges, [*floor, floor[-1]], [*roof, roof[-1]], step="post",
            facecolor=color, hatch=hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        floor = roof
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, top)
    axes.set_ylabel(what)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xticks(range(len(steps)), [step["label"] for step in steps], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _mark_pool(axes, one: dict[str, Any]):
    capacity, (_, top) = one["spec"]["num_pages"], axes.get_ylim()
    text, height = f"device pool: {capacity:,} pages", min(capacity, top)
    if capacity < top:
        axes.axhline(capacity, color="black", linewidth=1, linestyle=":")
    else:
        text, height = f"{text} (above)", 0.94 * top
    axes.annotate(
        text, (0.004, height), (0, 3), fontsize=8,
        xycoords=("axes fraction", "data"), textcoords="offset points",
    )  # fmt: skip


def _mark_measured(axes, one: dict[str, Any]):
    text = f"{one['cached_tokens']:,} of {one['prompt_tokens']:,} prompt tokens cached"
    _note(axes, one, f"the conversation goes on: {text}", "bold")


def _mark_snapshots(axes, one: dict[str, Any]):
    before = one["residency"][-2]["snapshots"]
    there = [f"{owners['conversation']} in {tier} memory" for tier, owners in before.items()
             if owners["conversation"]]  # fmt: skip
    _note(axes, one, f"the conversation's: {', '.join(there) or 'none left'}", "normal")


def _note(axes, one: dict[str, Any], text: str, weight: str):
    """A line where the measured request begins, and what stands before it."""
    begin = len(one["residency"]) - 1.5
    axes.axvline(begin, color="black", linewidth=1.2, linestyle="--")
    axes.annotate(
        text, (begin, 0.985), (-6, 0), xycoords=("data", "axes fraction"), ha="right", va="top",
        textcoords="offset points", fontsize=9, fontweight=weight,
    )  # fmt: skip


def _times(axes, objects: list[dict[str, Any]]):
    """Time to the first token of the measured request, by phase."""
    names = [ROW_NAMES.get(one["arm"], one["arm"]) for one in objects]
    longest = max(one["ttft_s"] for one in objects)
    left = [0.0] * len(objects)
    for phase, color in PHASES:
        widths = [1e3 * one[f"{phase}_s"] for one in objects]
        axes.barh(names, widths, left=left, color=color, label=phase, height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, one in enumerate(objects):
        text = f"{1e3 * one['ttft_s']:,.0f} ms\n(restore {1e3 * one['restore_s']:,.1f})"
        axes.annotate(text, (left[row], row), (4, 0), textcoords="offset points", va="center",
                      fontsize=9)  # fmt: skip
    axes.set_xlim(0, 1.35e3 * longest)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title("time to the first token", loc="left", fontsize=11, fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3, fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _facts(axes, objects: list[dict[str, Any]]):
    """Tokens of the measured prompt: cached, known but not resumable, and not known."""
    names = [ROW_NAMES.get(one["arm"], one["arm"]) for one in objects]
    cached = [one["cached_tokens"] for one in objects]
    stranded = [max(0, one["kv_tokens"] - one["cached_tokens"]) for one in objects]
    rest = [one["prompt_tokens"] - c - s
            for one, c, s in zip(objects, cached, stranded, strict=True)]  # fmt: skip
    kinds = (
        ("cached", cached, "#0072B2", ""),
        ("pages there, but no snapshot", stranded, "#E69F00", "//"),
        ("nothing there", rest, "#DDDDDD", ""),
    )
    left = [0] * len(objects)
    for label, widths, color, hatch in kinds:
        axes.barh(names, widths, left=left, color=color, hatch=hatch, label=label, height=0.6,
                  edgecolor="white", linewidth=0.4)  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("tokens")
    axes.set_title("the measured prompt", loc="left", fontsize=11, fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(arms: list[dict[str, Any]]):
    handles, labels = [], []
    for tier, owner, color, hatch in BANDS:
        used = any(step["pages"][tier][owner] for one in arms for step in one["residency"])
        if used:
            handles.append(Rectangle((0, 0), 1, 1, facecolor=color, hatch=hatch,
                                         edgecolor="white"))  # fmt: skip
            labels.append(f"{'cold slots' if tier == 'cold' else tier}: {owner}")
    return handles, labels
