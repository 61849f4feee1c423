"""Codecs by name, and which pairs keep their bytes."""

from typing import Final

from pallas_kernels.codecs import base, bf16, e2m1, fp8_e4m3, int4_g16, int8_g64

SEARCH_FLAG: Final = "search"
_KNOWN: Final[dict[str, base.Codec]] = {
    codec.name: codec
    for codec in (
        bf16.Bf16(),
        fp8_e4m3.Fp8E4m3(),
        int8_g64.Int8G64(),
        e2m1.E2m1(name="nvfp4_g16", group=16, search=False),
        e2m1.E2m1(name="nvfp4_g16+search", group=16, search=True),
        e2m1.E2m1(name="e2m1_g64", group=64, search=False),
        e2m1.E2m1(name="e2m1_g64+search", group=64, search=True),
        int4_g16.Int4G16(),
    )
}

CODECS: Final = tuple(_KNOWN)


def get_codec(text: str) -> base.Codec:
    """The codec of a name and its flags, such as "nvfp4_g16+search".

    Raises:
      ValueError: on an unknown name, or a flag that this codec does not take.
    """
    codec = _KNOWN.get(text)
    if codec is not None:
        return codec
    name, *flags = text.split("+")
    if name not in _KNOWN:
        raise ValueError(f"No codec {text!r}: {name!r} is not one of {', '.join(CODECS)}.")
    allowed = [known for known in CODECS if known.split("+")[0] == name]
    raise ValueError(
        f"No codec {text!r}: {name} does not take {'+'.join(flags)!r}; known: {', '.join(allowed)}."
    )
