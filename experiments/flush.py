"""Does a conversation come back once every page of it has left the device?

    python -m experiments.flush

A conversation, then two other prompts that together are larger than the device pool, then the
conversation goes on. In between, everything that nobody owns is overwritten with NaNs, so that a
read of it cannot go unnoticed, and what comes back is compared with what left, byte by byte.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import arms, report
from experiments.arms import Play
from experiments.conversation import flush_script
from experiments.residency import path_of
from experiments.scenario import Options, compare, conclude
from experiments.setup import FLUSH, PAGE_SIZE, Lab
from tiercache.testing import poison_free


class Bytes:
    """Keeps what the conversation consists of, and compares it with what comes back."""

    def __init__(self):
        self.pages: list[np.ndarray] = []
        self.snapshot: list[np.ndarray] = []

    def after_first(self, lab: Lab, name: str, play: Play) -> None:
        """Copies the resumable pages and their snapshot out of the cache."""
        state, path = play.engine.cache, _path(play)
        page_ids = np.asarray(state.index.entry)[path]
        if np.any(page_ids < 0):
            raise RuntimeError("a page left before it could be copied: raise num_pages.")
        self.pages = list(arms.records(state, page_ids))
        snap_id = int(state.index.snap_id[path[-1]])
        self.snapshot = [np.asarray(leaf[snap_id]) for leaf in state.snapshots.leaves]

    def before_measured(self, lab: Lab, name: str, play: Play) -> dict[str, Any]:
        """Poisons free storage, and restores the conversation on a copy of the cache."""
        engine = play.engine
        engine.cache = poison_free(engine.cache, engine.spec)
        left = int(np.sum(np.asarray(engine.cache.index.entry)[_path(play)] >= 0))
        found: dict[str, Any] = {"pages_left_on_device": left}
        if name != "on":
            return found
        twin = arms.fork(lab, name, engine)
        plan = arms.resume(twin, play.prompt)
        count = play.resumable_tokens // engine.spec.page_size
        page_ids = np.asarray(twin.cache.table.entries)[0, : int(plan.num_pages)]
        pages = list(arms.records(twin.cache, page_ids))
        snapshot = [np.asarray(leaf[:, 0]) for leaf in twin.cache.live]
        equal = len(page_ids) == count and _same(self.pages, pages)
        equal = equal and _same(self.snapshot, snapshot)
        compared = sum(x.nbytes for x in (*pages, *snapshot))
        return {**found, "bytes_equal": equal, "bytes_compared": compared}


def _path(play: Play) -> list[int]:
    """Nodes of the resumable part, as far as they exist."""
    pages = play.resumable_tokens // play.engine.spec.page_size
    return path_of(play.engine.cache.index, play.prompt)[:pages]


def _same(kept: list[np.ndarray], back: list[np.ndarray]) -> bool:
    pairs = zip(kept, back, strict=False)
    return len(kept) == len(back) and all(a.tobytes() == b.tobytes() for a, b in pairs)


def run(options: Options) -> int:
    """Runs the experiment; the exit status."""
    console, sizes = report.console(), options.sizes(FLUSH)
    console.print(
        f"flush, preset {options.preset}: building the model, then compiling each arm's functions "
        "(most of a run on CPU is this)"
    )
    script = flush_script(
        options.agent_trace,
        num_tokens=sizes.conversation_tokens,
        num_follow=sizes.follow_tokens,
        other_tokens=sizes.other_tokens,
    )
    lab = options.lab(sizes)
    objects = compare(
        lab, script, module="experiments.flush", lossy=options.lossy, console=console,
        checks=Bytes(),
    )  # fmt: skip
    objects = [{**one, "preset": options.preset, "text": script.source} for one in objects]
    title = (
        f"flush: a conversation of {objects[0]['prompt_tokens']:,} tokens after two prompts of "
        f"{sizes.other_tokens:,} through a pool of {sizes.num_pages * PAGE_SIZE:,}"
    )
    folder = options.out or Path("results/flush")
    return conclude(console, objects, name="flush", title=title, folder=folder)


def main():
    sys.exit(run(tyro.cli(Options, description=__doc__)))


if __name__ == "__main__":
    main()
