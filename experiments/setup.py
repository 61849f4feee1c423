"""Models, specs and engines of the experiments, by preset."""

import dataclasses
import functools
from typing import Literal

from flax import nnx

import tiercache as tc
from models.engine import Config, Engine, Request
from models.hybrid_gdn import Apply, HybridGDN, functional, recurrent_leaves, small, tiny
from models.hybrid_gdn.config import HybridConfig
from tiercache.policies import SnapshotPlacement
from tiercache.spec import AUTO

PresetName = Literal["cpu", "seed"]
PAGE_SIZE = 64

ArmName = Literal["cold", "off", "on", "lossy"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large a scenario is, and what it has to live in.

    Attributes:
      conversation_tokens: of the conversation's first prompt.
      answer_tokens: of the answer to it.
      follow_tokens: of what is said next.
      measured_tokens: generated for the measured request.
      num_others, other_tokens, other_answer: the requests in between, their prompts and answers.
      num_pages, num_snapshots: of the device.
      num_host_pages, num_host_snapshots: of host memory.
      num_cold_slots: of the lossy arm.
      max_pages: of the longest sequence.
      chunk: tokens per prefill call.
    """

    conversation_tokens: int
    answer_tokens: int
    follow_tokens: int
    measured_tokens: int
    num_others: int
    other_tokens: int
    other_answer: int
    num_pages: int
    num_snapshots: int
    num_host_pages: int
    num_host_snapshots: int
    num_cold_slots: int
    max_pages: int
    chunk: int


CHURN: dict[PresetName, Sizes] = {
    # The answer crosses a page boundary, so the last resumable depth lies in decoded tokens. The
    # others take a part of the conversation's pages, and all of its snapshots.
    "cpu": Sizes(
        conversation_tokens=4240, answer_tokens=64, follow_tokens=200, measured_tokens=32,
        num_others=10, other_tokens=180, other_answer=16, num_pages=80, num_snapshots=4,
        num_host_pages=128, num_host_snapshots=32, num_cold_slots=128, max_pages=76, chunk=512,
    ),
    # In bfloat16 a decoded token's K and V differ from a prefilled one's in the last bit. The
    # answer stays within a page, so that the control computes the cached part in the same way.
    "seed": Sizes(
        conversation_tokens=24_016, answer_tokens=32, follow_tokens=900, measured_tokens=64,
        num_others=10, other_tokens=400, other_answer=24, num_pages=3125, num_snapshots=4,
        num_host_pages=5000, num_host_snapshots=64, num_cold_slots=5000, max_pages=2112, chunk=1024,
    ),
}  # fmt: skip

# Two snapshots on the device, so that the conversation's leave with its pages.
FLUSH: dict[PresetName, Sizes] = {
    "cpu": dataclasses.replace(
        CHURN["cpu"], num_others=2, other_tokens=3600, num_snapshots=2, num_host_pages=224,
        num_cold_slots=224,
    ),
    "seed": dataclasses.replace(
        CHURN["seed"], num_others=2, other_tokens=130_000, num_snapshots=2
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to serve a scenario.

    Attributes:
      name: as in the JSON lines.
      spec: the cache.
      config: the engine's policies.
    """

    name: ArmName
    spec: tc.CacheSpec
    config: Config


@dataclasses.dataclass(frozen=True)
class Lab:
    """A model and the arms that serve it.

    Attributes:
      model: the model's geometry.
      apply, params: the model.
      arms: by name.
      sizes: of the scenario.
    """

    model: HybridConfig
    apply: Apply
    params: nnx.State
    arms: dict[str, Arm]
    sizes: Sizes

    def engine(self, name: str) -> Engine:
        """A fresh engine for an arm."""
        arm = self.arms[name]
        return Engine(self.apply, self.params, arm.spec, arm.config)

    def warm_up(self, name: str):
        """Compiles all that an arm will call, with a throwaway engine and request."""
        engine = self.engine(name)
        request = Request(tuple(range(1, 200)), max_new=2)
        for _ in range(2):
            engine.serve(request)


def make_lab(
    preset: PresetName,
    sizes: Sizes,
    *,
    write: Literal["back", "through"] = "back",
    hot: str = "all:bf16",
    cold: str = "all:nvfp4_g16",
    cold_memory: Literal["device", "host"] = "device",
    model: HybridConfig | None = None,
) -> Lab:
    """The model with random weights and its arms.

    `cold` and `off` have the spec of `on`, so that they share its compiled functions: `off` drops
    what leaves the device, and its host banks stay empty.
    """
    model = model or (tiny() if preset == "cpu" else small())
    apply, params = _random_model(model)
    exact = tc.CacheSpec(
        num_layers=model.num_attention_layers,
        num_kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        num_pages=sizes.num_pages,
        max_rows=1,
        page_size=PAGE_SIZE,
        max_pages=sizes.max_pages,
        snapshot_leaves=tuple(
            tc.SnapshotLeaf(name, shape, str(dtype))
            for name, shape, dtype in recurrent_leaves(model)
        ),
        hot_formats=hot,
        cold_formats=cold,
        num_host_pages=sizes.num_host_pages,
        num_snapshots=sizes.num_snapshots,
        num_host_snapshots=sizes.num_host_snapshots,
    )
    lossy = dataclasses.replace(
        exact,
        num_host_pages=0,
        num_cold_slots=sizes.num_cold_slots,
        policy="window" if cold_memory == "device" else "host",
        num_nodes=AUTO,
    )
    tiers = Config(chunk=sizes.chunk, placement=SnapshotPlacement())
    drop = dataclasses.replace(tiers, pages_to="drop", snapshots_to="drop")
    arms = (
        Arm("cold", exact, drop),
        Arm("off", exact, drop),
        Arm("on", exact, dataclasses.replace(tiers, write=write)),
        Arm("lossy", lossy, dataclasses.replace(tiers, pages_to="cold")),
    )
    return Lab(model, apply, params, {arm.name: arm for arm in arms}, sizes)


@functools.cache
def _random_model(config: HybridConfig):
    return functional(HybridGDN(config, rngs=nnx.Rngs(0)))
