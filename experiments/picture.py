"""Pictures: what was resident in which tier over time, and where the time to a first token went."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the backend is chosen)

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
ARM_TITLES = {
    "off": "tier off: what leaves the device is gone",
    "on": "tier on: what leaves the device goes to host memory",
    "lossy": "lossy: pages leave for 4-bit cold slots, snapshots for host memory",
}


def draw(path: Path, objects: list[dict[str, Any]], title: str):
    """Writes the picture of one run: one band chart per arm, and the bars of all arms."""
    arms = [one for one in objects if len(one["residency"]) > 1]
    figure = plt.figure(figsize=(14, 1.2 + 3.3 * len(arms)), layout="constrained")
    grid = figure.add_gridspec(2 * len(arms), 2, height_ratios=[3.2, 1] * len(arms),
                               width_ratios=[2.1, 1])  # fmt: skip
    top = max(_total(step["pages"]) for one in arms for step in one["residency"])
    for number, one in enumerate(arms):
        pages = figure.add_subplot(grid[2 * number, 0])
        snapshots = figure.add_subplot(grid[2 * number + 1, 0], sharex=pages)
        _bands(pages, one, "pages", 1.18 * top)
        _bands(snapshots, one, "snapshots", None)
        pages.tick_params(labelbottom=False)
        pages.set_title(ARM_TITLES[one["arm"]], loc="left", fontsize=11, fontweight="bold")
        capacity = one["spec"]["num_pages"]
        pages.axhline(capacity, color="black", linewidth=1, linestyle=":")
        pages.annotate(
            f"device pool: {capacity} pages", (0.004, capacity), (0, 3), fontsize=8,
            xycoords=("axes fraction", "data"), textcoords="offset points",
        )  # fmt: skip
        _mark_measured(pages, one)
    _times(figure.add_subplot(grid[: len(arms), 1]), objects)
    _facts(figure.add_subplot(grid[len(arms) :, 1]), objects)
    handles, labels = _legend(arms)
    figure.legend(handles, labels, loc="outside lower left", ncols=6, fontsize=9, frameon=False)
    figure.suptitle(title, fontsize=13, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _total(counts: dict[str, dict[str, int]]) -> int:
    return sum(sum(owners.values()) for owners in counts.values())


def _bands(axes, one: dict[str, Any], what: str, top: float | None):
    """Stacked counts, one step wide each."""
    steps = one["residency"]
    edges = [i - 0.5 for i in range(len(steps) + 1)]
    floor = [0] * len(steps)
    for tier, owner, color, hatch in BANDS:
        if tier not in steps[0][what]:
            continue
        roof = [f + step[what][tier][owner] for f, step in zip(floor, steps, strict=True)]
        axes.fill_between(
            edges, [*floor, floor[-1]], [*roof, roof[-1]], step="post", color=color, hatch=hatch,
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        floor = roof
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, top or max(2, 1.15 * max(floor)))
    axes.set_ylabel(what)
    axes.set_xticks(range(len(steps)), [step["label"] for step in steps], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _mark_measured(axes, one: dict[str, Any]):
    last = len(one["residency"]) - 1
    axes.axvline(last - 0.5, color="black", linewidth=1.2, linestyle="--")
    axes.annotate(
        f"the conversation goes on: {one['cached_tokens']:,} of {one['prompt_tokens']:,} tokens "
        "cached",
        (last - 0.5, 0.985), (-6, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", ha="right", va="top", fontsize=9, fontweight="bold",
    )  # fmt: skip


def _times(axes, objects: list[dict[str, Any]]):
    """Time to the first token of the measured request, by phase."""
    names = [one["arm"] for one in objects]
    longest = max(one["ttft_s"] for one in objects)
    left = [0.0] * len(objects)
    for phase, color in PHASES:
        widths = [1e3 * one[f"{phase}_s"] for one in objects]
        axes.barh(names, widths, left=left, color=color, label=phase, height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, one in enumerate(objects):
        axes.annotate(f"{1e3 * one['ttft_s']:,.0f} ms", (left[row], row), (4, 0),
                      textcoords="offset points", va="center", fontsize=9)  # fmt: skip
    axes.set_xlim(0, 1.2e3 * longest)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title("time to the first token", loc="left", fontsize=11, fontweight="bold")
    axes.legend(loc="lower right", fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _facts(axes, objects: list[dict[str, Any]]):
    """Tokens of the measured prompt: cached, known but not resumable, and not known."""
    names = [one["arm"] for one in objects]
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
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(arms: list[dict[str, Any]]):
    handles, labels = [], []
    for tier, owner, color, hatch in BANDS:
        used = any(step["pages"][tier][owner] for one in arms for step in one["residency"])
        if used:
            handles.append(plt.Rectangle((0, 0), 1, 1, facecolor=color, hatch=hatch,
                                         edgecolor="white"))  # fmt: skip
            labels.append(f"{tier}: {owner}")
    return handles, labels
