"""An H200 that is not there, and the compiler for it. Private parts of JAX are used here alone."""

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from jax._src import compiler
from jax._src.lib import xla_client
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from tests.compile_gpu.programs import Compiled

KIND: Final = "NVIDIA H200"
NUM_CORES: Final = 132

# The numbers of the data sheet and of the H100's own description, which has the same chip.
DESCRIPTION: Final = f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 core_count: {NUM_CORES} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 cuda_compute_capability {{ major: 9 }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" device_description_str: "{KIND}"
dnn_version_info {{ major: 9 minor: 12 }} runtime_version {{ major: 13 minor: 0 patch: 0 }}
"""


@functools.cache
def _device():
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=DESCRIPTION, topology="1x1x1"
    )
    return topology.devices[0]


def in_memory(x: Any, *, host: bool) -> jax.ShapeDtypeStruct:
    """An abstract array in device memory or in pinned host memory.

    Only a `NamedSharding` makes the memory a part of its type, and only a real device has two
    memories: the CPU's stand for the GPU's until the program goes to the compiler.
    """
    mesh = jax.sharding.Mesh(jax.devices("cpu")[:1], ("x",))
    kind = "pinned_host" if host else "device"
    sharding = NamedSharding(mesh, PartitionSpec(), memory_kind=kind)
    weak = getattr(x, "weak_type", False)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=weak)


def abstract(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns, as abstract arrays, each in the memory that it lives in."""
    traced = jax.jit(function).trace(*args)
    leaves = [
        in_memory(aval, host=aval.memory_space == jax.memory.Space.Host)
        for aval in traced.jaxpr.out_avals
    ]
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), leaves)


def compile_for_h200(
    step: Callable[..., Any], args: tuple[Any, ...], donated: tuple[int, ...]
) -> Compiled:
    """Compiles `step`; what it returns stays in the memory that it is typed for.

    Args:
      step: of arrays.
      args: pytrees of abstract arrays, from `in_memory`.
      donated: positions in `args`.
    """
    h200 = jax.sharding.AbstractDevice(device_kind=KIND, num_cores=NUM_CORES, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=h200)):
        results = jax.tree.map(lambda x: x.sharding, abstract(step, *args))
        # Unused arguments are kept, so that parameter n of the program is leaf n of `args`.
        jitted = jax.jit(step, donate_argnums=donated, out_shardings=results, keep_unused=True)
        lowered = jitted.trace(*args).lower(lowering_platforms=("cuda",))
    device = _device()
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=1,
        device_assignment=np.array([[device.id]]),
        backend=device.client,
    )
    executable = device.client.compile(
        lowered.compiler_ir("stablehlo"),
        executable_devices=xla_client.DeviceList((device,)),
        compile_options=options,
    )
    memory = executable.get_compiled_memory_stats()
    (module,) = executable.hlo_modules()
    return Compiled(module.to_string(), memory.temp_size_in_bytes, memory.host_temp_size_in_bytes)
