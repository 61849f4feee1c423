"""What `make compile-gpu` reads in a compiled program, on programs written by hand."""

import jax
import jax.numpy as jnp
import pytest

from tests.compile_gpu import hlo
from tests.compile_gpu.judge import judge
from tests.compile_gpu.programs import Compiled, Program

# A bank of 4 MiB in host memory, a pool of 2 MiB, and a table of 64 bytes.
HEADER = (
    "HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias),"
    " {1}: (1, {}, may-alias) }, entry_computation_layout={(...)->(...)}, num_partitions=1\n"
)
FUSED = (
    """%fused_update (pool: s8[2048,1024], row: s8[1,1024], slot: s32[]) -> s8[2048,1024] {
  %pool = s8[2048,1024]{1,0} parameter(0)
  %row = s8[1,1024]{1,0} parameter(1)
  %slot = s32[] parameter(2)
  %wide = s8[2048,1024]{1,0} negate(%pool), metadata={op_name="jit(step)/neg"}
  %zero = s32[] constant(0)
  ROOT %update.1 = s8[2048,1024]{1,0} dynamic-update-slice(%pool, %row, %slot, %zero)
}
""",
    """%fused_select (param_0.1: s8[2048,1024], param_1.1: pred[]) -> (s8[2048,1024], s32[16]) {
  %param_0.1 = s8[2048,1024]{1,0} parameter(0)
  %param_1.1 = pred[] parameter(1)
  %select.1 = s8[2048,1024]{1,0} select(%param_1.1, %param_0.1, %param_0.1)
  %iota.1 = s32[16]{0} iota(), iota_dimension=0
  ROOT %tuple.1 = (s8[2048,1024]{1,0}, s32[16]{0}) tuple(%select.1, %iota.1)
}
""",
    """%fused_bitcast (param_0.2: s8[2048,1024]) -> s8[1024,2048] {
  %param_0.2 = s8[2048,1024]{1,0} parameter(0)
  ROOT %bitcast.2 = s8[1024,2048]{1,0} bitcast(%param_0.2)
}
""",
)
PARAMETERS = """
ENTRY %main.1 (bank.1: u8[4096,1024], pool.1: s8[2048,1024], table.1: s32[16]) -> (u8[4096,1024]) {
  %bank.1 = u8[4096,1024]{1,0:S(5)} parameter(0), metadata={op_name="bank"}
  %pool.1 = s8[2048,1024]{1,0} parameter(1)
  %table.1 = s32[16]{0} parameter(2)
  %row.1 = s8[1,1024]{1,0} bitcast(%table.1)
  %slot.1 = s32[] constant(3)
"""
MIB = 2**20


def program(*lines: str) -> str:
    called = [each for each in FUSED if any(each.split()[0] in line for line in lines)]
    return HEADER + "".join(called) + PARAMETERS + "".join(f"  {line}\n" for line in lines) + "}\n"


def copies(*lines: str) -> list[str]:
    return hlo.whole_writes(program(*lines), MIB)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            '%copy.1 = s8[2048,1024]{1,0} copy(%pool.1), metadata={op_name="jit(step)/a/b"}',
            "copy s8[2048,1024]{1,0} of jit(step)/a/b",
        ),
        (
            "ROOT %copy.2 = u8[4096,1024]{1,0:S(5)} copy(%bank.1)",
            "copy u8[4096,1024]{1,0:S(5)}",
        ),
        (
            "%copy-start.1 = (u8[4096,1024]{1,0}, u8[4096,1024]{1,0:S(5)}, u32[])"
            " copy-start(%bank.1)",
            "copy-start u8[4096,1024]{1,0}",
        ),
        (
            "%transpose.1 = s8[1024,2048]{1,0} transpose(%pool.1), dimensions={1,0}",
            "transpose s8[1024,2048]{1,0}",
        ),
        ("%as_f32 = f32[2048,1024]{1,0} convert(%pool.1)", "convert f32[2048,1024]{1,0}"),
        (
            "%slice-start.1 = ((u8[4096,1024]{1,0:S(5)}), u8[4095,1024]{1,0}, u32[])"
            " slice-start(%bank.1)",
            "slice-start u8[4095,1024]{1,0}",
        ),
        (
            "%fusion.1 = (s8[2048,1024]{1,0}, /*index=1*/s32[16]{0}) fusion(%pool.1, %is.1),"
            " kind=kLoop, calls=%fused_select",
            "fusion s8[2048,1024]{1,0}",
        ),
        (
            "%fusion.2 = s8[1024,2048]{1,0} fusion(%pool.1), kind=kLoop, calls=%fused_bitcast",
            "fusion s8[1024,2048]{1,0}",
        ),
        (
            "%made.1 = (s8[2048,1024]{1,0}, s32[16]{0}) custom-call(%pool.1, %table.1),"
            ' custom_call_target="__gpu$xla.gpu.triton",'
            " output_to_operand_aliasing={{1}: (1, {})}",
            "custom-call s8[2048,1024]{1,0}",
        ),
    ],
    ids=lambda text: text.partition(" ")[0].removeprefix("%"),
)
def test_a_write_of_a_whole_pool_or_bank_is_found(line, found):
    assert copies(line) == [found]


@pytest.mark.parametrize(
    "line",
    [
        "%copy.1 = s32[16]{0} copy(%table.1)",
        "%copy.2 = u8[4096]{0:S(5)} copy(%column.1)",
        "%copy-start.1 = (u8[1,1024]{1,0:S(5)}, u8[1,1024]{1,0}, u32[]) copy-start(%row.1)",
        "%copy-done.1 = u8[4096,1024]{1,0} copy-done(%copy-start.9)",
        "%part.1 = s8[3,1024]{1,0} dynamic-slice(%pool.1, %slot.1, %slot.1)",
        "%update.2 = s8[2048,1024]{1,0} dynamic-update-slice(%pool.1, %row.1, %slot.1, %slot.1)",
        "%fusion.1 = s8[2048,1024]{1,0} fusion(%pool.1, %row.1, %slot.1), calls=%fused_update",
        "%start.1 = ((s8[2048,1024]{1,0}, s8[1,1024]{1,0}, s32[]), s8[2048,1024]{1,0}, u32[])"
        " fusion-start(%pool.1, %row.1, %slot.1), kind=kLoop, calls=%fused_update",
        "%slice-start.1 = ((u8[4096,1024]{1,0:S(5)}, s32[]), u8[1,1024]{1,0}, u32[])"
        " dynamic-slice-start(%bank.1, %slot.1)",
        "%while.1 = (s32[], s8[2048,1024]{1,0}) while(%tuple.9), condition=%c, body=%b",
        "ROOT %tuple.2 = (u8[4096,1024]{1,0:S(5)}, s8[2048,1024]{1,0}) tuple(%bank.1, %pool.1)",
        "%kernel.1 = u8[4096,1024]{1,0:S(5)} custom-call(%pool.1, %table.1, %bank.1),"
        ' custom_call_target="__gpu$xla.gpu.triton", output_to_operand_aliasing={{}: (2, {})}',
        "%kernel.2 = (s8[2048,1024]{1,0}, s32[16]{0}) custom-call(%bank.1, %pool.1),"
        ' custom_call_target="__gpu$xla.gpu.triton",'
        " output_to_operand_aliasing={{0}: (1, {}), {1}: (2, {})}",
    ],
    ids=lambda text: text.split()[0 if text[0] == "%" else 1].removeprefix("%"),
)
def test_a_small_copy_and_an_update_in_place_are_let_through(line):
    assert copies(line) == []


def test_kernels_and_computing_in_host_memory_are_counted():
    call = '%k = s32[16]{0} custom-call(%table.1), custom_call_target="__gpu$xla.gpu.triton"'
    host = '%n = u8[1,1024]{1,0:S(5)} negate(%r), frontend_attributes={_xla_compute_type="host"}'
    assert hlo.num_kernels(program(call, call.replace("%k", "%k.1"))) == 2
    assert hlo.num_kernels(program(call.replace("triton", "other"))) == 0
    assert (hlo.num_in_host(program(host)), hlo.num_in_host(program(call))) == (1, 0)


def test_aliases_are_read_from_the_header():
    assert hlo.aliases(program()) == {0: 0, 1: 1}
    assert hlo.aliases("HloModule a, input_output_alias={ {}: (3, {}, must-alias) }\n") == {3: 0}
    assert hlo.aliases("HloModule a, is_scheduled=true\n") == {}


def wanted(**changes) -> Program:
    """A step that updates a bank of 4 MiB and a pool of 2 MiB."""
    bank = jax.ShapeDtypeStruct((4096, 1024), jnp.uint8)
    pool = jax.ShapeDtypeStruct((2048, 1024), jnp.int8)
    table = jax.ShapeDtypeStruct((16,), jnp.int32)
    args = (bank, (pool,), table)
    return Program("step", lambda *args: args, args, donated=(0, 1), pools=(0, 1))._replace(
        **changes
    )


GOOD = program("%copy.1 = s32[16]{0} copy(%table.1)")
COPYING = program("%copy.1 = s8[2048,1024]{1,0} copy(%pool.1)")


def problem(text: str, temporary: int = 0, host_temporary: int = 0, **changes) -> str:
    return "; ".join(judge(wanted(**changes), Compiled(text, temporary, host_temporary)).problems)


def test_a_good_program_has_no_problems():
    outcome = judge(wanted(), Compiled(GOOD, MIB - 1, 0))
    assert outcome.problems == ()
    assert outcome.aliased == outcome.state == 6 * MIB


def test_what_is_wrong_is_said():
    assert "writes all of copy s8[2048,1024]" in problem(COPYING)
    assert "scratch in device memory" in problem(GOOD, MIB)
    assert "scratch in host memory" in problem(GOOD, 0, MIB)
    assert "calls no kernel" in problem(GOOD, wants_kernels=True)
    unshared = GOOD.replace("{1}: (1, {}, may-alias)", "{2}: (2, {}, may-alias)")
    assert problem(unshared) == "2,097,152 bytes of pools and banks are not aliased"
    exchanged = GOOD.replace("{1}: (1,", "{0}: (1,").replace("{0}: (0,", "{1}: (0,")
    assert problem(exchanged) == "6,291,456 bytes of pools and banks are not aliased"


def test_a_control_has_to_copy():
    assert problem(COPYING, 9 * MIB, is_control=True) == ""
    assert "copies nothing" in problem(GOOD, is_control=True)
