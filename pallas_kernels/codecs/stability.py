"""Whether moving a plane to a cold codec and back, again and again, keeps the cold bytes."""

from pallas_kernels.codecs.base import Codec

_FOUR_BIT = ("nvfp4_g16", "e2m1_g64", "int4_g16")


def is_byte_stable(hot: Codec, cold: Codec) -> bool:
    """Whether pack(restore(pack(x))) has the bytes of pack(x) for all that `hot` can hold.

    `pack` encodes a plane decoded from `hot` in `cold`; `restore` decodes it and encodes it in
    `hot`. True by one of these arguments, and False for every other pair:

    - One family in both (flags may differ). What `hot` holds, `cold` stores exactly or moves to
      a value of the plain codec; either way `hot` stores the result exactly.
    - One of the two is bfloat16 and the other has values of at most 8 significant bits, which
      is all but `int8_g64`: one of the two steps is exact, and encode(decode(encode(x))) is
      encode(x) in every codec concerned.
    - `int8_g64` under `e2m1_g64`: both have one scale per 64 channels. Through int8 the largest
      value moves by 2**-8 of itself at most and the others by 1/254 of it, and no code, scale
      or choice between two scales is that near to its cut.
    - `fp8_e4m3` under `int4_g16`: each group's largest value was an E4M3 value, 7 times the
      scale next to its seventh rounds to a value with that scale, and rounding a code's value
      to 4 significant bits moves it by less than half a code.

    Counterexamples to the rest are in the tests. Two groups of 16 share one int8 scale, and half
    a step of it can be more than the smaller group's values bear. Under fp8 a plain E2M1 codec
    changes bytes only past its largest value (6 * 448 is no E4M3 value, and its neighbour 2560
    has another scale) or where one token spans more than fp8 does; with `+search`, the noise of
    fp8 can also turn the choice of a scale.
    """
    hot_name, cold_name = hot.name.split("+")[0], cold.name.split("+")[0]
    if hot_name == cold_name:
        return True
    short = ("bf16", "fp8_e4m3", *_FOUR_BIT)
    if "bf16" in (hot_name, cold_name):
        return hot_name in short and cold_name in short
    return (hot_name, cold_name) in (("int8_g64", "e2m1_g64"), ("fp8_e4m3", "int4_g16"))
