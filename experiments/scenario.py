"""A scenario under all arms: what `churn` and `flush` have in common."""

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments import arms, picture, report
from experiments.arms import Measured, Play
from experiments.conversation import Script
from experiments.lossy import attention_error, loss
from experiments.setup import PAGE_SIZE, Lab, PresetName, Sizes, make_lab


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What every experiment can be told.

    Attributes:
      preset: "cpu" takes minutes on two cores; "seed" is for a GPU.
      agent_trace: JSON lines of an agent's requests, to take the conversation from.
      write: "back" copies to host memory on eviction, "through" at insertion.
      hot: formats of device pages and their exact copies, such as "all:int8_g64".
      cold: formats of the lossy arm's cold slots.
      cold_memory: where cold slots are.
      lossy: whether to run the lossy arm.
      conversation_tokens: of the conversation's first prompt; the preset's by default. The pools
        grow or shrink along.
      out: folder for JSON lines and picture; results/<experiment> by default.
    """

    preset: PresetName = "cpu"
    agent_trace: Path | None = None
    write: Literal["back", "through"] = "back"
    hot: str = "all:bf16"
    cold: str = "all:nvfp4_g16"
    cold_memory: Literal["device", "host"] = "device"
    lossy: bool = True
    conversation_tokens: int | None = None
    out: Path | None = None

    def sizes(self, presets: dict[PresetName, Sizes]) -> Sizes:
        """The preset's, with what was asked for in place of its own."""
        sizes = presets[self.preset]
        if self.conversation_tokens is None:
            return sizes
        pages = (self.conversation_tokens - sizes.conversation_tokens) // PAGE_SIZE
        grow = ("num_pages", "max_pages", "num_host_pages", "num_cold_slots")
        return dataclasses.replace(
            sizes,
            conversation_tokens=self.conversation_tokens,
            **{name: getattr(sizes, name) + pages for name in grow},
        )

    def lab(self, sizes: Sizes) -> Lab:
        """The model and its arms."""
        return make_lab(
            self.preset, sizes, write=self.write, hot=self.hot, cold=self.cold,
            cold_memory=self.cold_memory,
        )  # fmt: skip


class Checks(Protocol):
    """What an experiment looks at while an arm runs."""

    def after_first(self, lab: Lab, name: str, play: Play) -> None:
        """Called once the conversation's first request is served."""

    def before_measured(self, lab: Lab, name: str, play: Play) -> dict[str, Any]:
        """Called before the measured request; returns further fields of its JSON object."""
        ...


class NoChecks:
    """Looks at nothing."""

    def after_first(self, lab: Lab, name: str, play: Play) -> None:
        """Nothing."""

    def before_measured(self, lab: Lab, name: str, play: Play) -> dict[str, Any]:
        """Nothing."""
        return {}


def compare(
    lab: Lab, script: Script, *, module: str, lossy: bool, console: Console, checks: Checks
) -> list[dict[str, Any]]:
    """Serves a script under every arm; one JSON object per measured request, control first."""
    names = ["off", "on", *(["lossy"] if lossy else [])]
    plays: dict[str, Play] = {}
    measured: dict[str, Measured] = {}
    more: dict[str, dict[str, Any]] = {"cold": {}}
    with _progress(console) as progress:
        steps = len(names) * (len(script.others) + 2) + 1
        task = progress.add_task("", total=steps)

        def ticker(name: str) -> Callable[[str], None]:
            return lambda label: progress.update(task, advance=1, description=f"{name}: {label}")

        progress.update(task, description="compiling")
        _warm_up(lab, lossy, console)
        for name in names:
            tick = ticker(name)
            play = arms.begin(lab, name, script, tick)
            resident = _stays_resident(lab, play) if name == "on" else None
            checks.after_first(lab, name, play)
            arms.serve_others(lab, play, script, tick)
            if name == "lossy":
                arms.pack_idle(play)
            more[name] = checks.before_measured(lab, name, play)
            measured[name] = arms.measure(lab, name, play, tick)
            if name != "off":  # its pools would be memory for nothing
                plays[name] = play
            if resident is not None:
                same = _same_bits(measured[name].report.first_logits, resident)
                more[name]["logits_bit_equal_to_never_moved"] = same
        play = arms.control(lab, plays["on"])
        measured["cold"] = arms.measure(lab, "cold", play, ticker("cold"))
        if lossy:
            progress.update(task, description="lossy: reading the same pages with the same queries")
            more["lossy"]["attention_error"] = attention_error(
                plays["on"].engine, plays["lossy"].engine, lab.apply, play.prompt,
                plays["on"].resumable_tokens,
            )  # fmt: skip
    return [_object(module, lab, measured, name, more[name]) for name in ("cold", *names)]


def _warm_up(lab: Lab, lossy: bool, console: Console):
    """Compiles before anything is timed: one thread per spec, since each compile uses one core."""
    started = time.perf_counter()
    groups = [("off", "on"), *([("lossy",)] if lossy else [])]
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(lambda names: [lab.warm_up(name) for name in names], groups))
    console.print(f"compiled in {time.perf_counter() - started:.0f} s")


def _object(module: str, lab: Lab, measured: dict[str, Measured], name: str, more):
    ours, control = measured[name], measured["cold"]
    equal = ours.report.outputs == control.report.outputs
    return report.record(module, lab, ours, loss(ours.report, control.report), equal, **more)


def _stays_resident(lab: Lab, play: Play) -> np.ndarray:
    """First logits of the measured request if nothing ever leaves the device."""
    twin = arms.fork(lab, "on", play.engine)
    logits = twin.serve(arms.measured_request(lab, play)).first_logits
    assert logits is not None
    return logits


def _same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and a.tobytes() == b.tobytes()


def failures(objects: list[dict[str, Any]]) -> list[str]:
    """What must hold and does not, in words."""
    found = []
    for one in objects:
        name = one["arm"]
        if one["exact"] and not one["outputs_equal"]:
            found.append(
                f"{name}: outputs differ from the cold run's after {one['tokens_equal']} tokens."
            )
        if name in ("on", "lossy") and one["cached_tokens"] != one["resumable_tokens"]:
            found.append(
                f"{name}: {one['cached_tokens']} tokens were cached, but {one['resumable_tokens']} "
                f"are resumable ({one['cut']})."
            )
        if not one.get("bytes_equal", True):
            found.append(f"{name}: bytes that came back are not those that left.")
        if one.get("pages_left_on_device", 0):
            found.append(f"{name}: {one['pages_left_on_device']} pages never left the device.")
    return found


def conclude(
    console: Console, objects: list[dict[str, Any]], *, name: str, title: str, folder: Path
) -> int:
    """Prints the tables, writes the files; the exit status."""
    lines, image = folder / f"{name}.jsonl", folder / f"{name}.png"
    report.write_lines(lines, objects)
    picture.draw(image, objects, title)
    for table in (
        report.latency_table(objects, title),
        report.traffic_table(objects),
        report.loss_table(objects),
    ):
        console.print(table)
    console.print(
        "Times are of one request, after compilation: every arm serves a throwaway request first."
    )
    bad = failures(objects)
    exact = [one for one in objects if one["exact"]]
    console.print(f"outputs equal: {_yes(all(one['outputs_equal'] for one in exact))}")
    if any("bytes_equal" in one for one in objects):
        console.print(f"bytes equal: {_yes(all(one.get('bytes_equal', True) for one in objects))}")
    for one in objects:
        if "logits_bit_equal_to_never_moved" in one:
            same = _yes(one["logits_bit_equal_to_never_moved"])
            console.print(f"logits bit-equal to a run whose copies never moved: {same}")
        for text in one["refusals"]:
            console.print(f"{one['arm']}, refused once and served after making room: {text}")
    console.print(f"written: {lines} and {image}", soft_wrap=True)
    for text in bad:
        console.print(f"FAILED {text}", style="bold red")
    return 1 if bad else 0


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", justify="left"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console,
    )  # fmt: skip
