"""Does a conversation survive what other requests do to the cache?

    python -m experiments.churn

One long conversation, short requests of other content in between (as an agent's title generator
makes them), then the conversation goes on. The device pools are so small that the others drain the
snapshots. Without lower tiers nothing of the conversation can be resumed, although most of its
pages are still there; with them, all of it can. A cold run is the control.
"""

import dataclasses
import sys
from pathlib import Path

import tyro

from experiments import report
from experiments.conversation import churn_script
from experiments.scenario import NoChecks, Options, compare, conclude
from experiments.setup import CHURN


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChurnOptions(Options):
    """Options of this experiment.

    Attributes:
      num_others: auxiliary requests in between; the preset's by default.
    """

    num_others: int | None = None


def run(options: ChurnOptions) -> int:
    """Runs the experiment; the exit status."""
    console, sizes = report.console(), options.sizes(CHURN)
    num_others = sizes.num_others if options.num_others is None else options.num_others
    console.print(
        f"churn, preset {options.preset}: building the model, then compiling each arm's functions "
        "(most of a run on CPU is this)"
    )
    script = churn_script(
        options.agent_trace,
        num_tokens=sizes.conversation_tokens,
        num_follow=sizes.follow_tokens,
        num_others=num_others,
        other_tokens=sizes.other_tokens,
    )
    objects = compare(
        options.lab(sizes), script, module="experiments.churn", lossy=options.lossy,
        console=console, checks=NoChecks(),
    )  # fmt: skip
    objects = [{**one, "preset": options.preset, "text": script.source} for one in objects]
    title = (
        f"churn: a conversation of {objects[0]['prompt_tokens']:,} tokens after "
        f"{len(script.others)} auxiliary requests"
    )
    folder = options.out or Path("results/churn")
    return conclude(console, objects, name="churn", title=title, folder=folder)


def main():
    options = tyro.cli(ChurnOptions, description=__doc__)
    sys.exit(run(options))


if __name__ == "__main__":
    main()
