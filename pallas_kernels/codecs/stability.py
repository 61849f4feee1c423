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

    Counterexamples to the rest are in the tests. Such as: two groups of 16 with far apart
    scales share one int8 scale, under which the smaller group vanishes; 6 * 14 is no E4M3 value
    and its neighbour 80 has the scale 13.
    """
    hot_name, cold_name = hot.name.split("+")[0], cold.name.split("+")[0]
    if hot_name == cold_name:
        return True
    short = ("bf16", "fp8_e4m3", *_FOUR_BIT)
    if "bf16" in (hot_name, cold_name):
        return hot_name in short and cold_name in short
    return (hot_name, cold_name) in (("int8_g64", "e2m1_g64"), ("fp8_e4m3", "int4_g16"))
