"""The text of layer formats: what it means, what is refused and where, and the way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.codecs import CODECS
from tiercache.formats import format_text, parse_formats


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("all:bf16", "bf16/bf16 bf16/bf16 bf16/bf16 bf16/bf16"),
        (
            "all:int8_g64; 0,1,3:nvfp4_g16",
            "nvfp4_g16/nvfp4_g16 nvfp4_g16/nvfp4_g16 int8_g64/int8_g64 nvfp4_g16/nvfp4_g16",
        ),
        (
            "all:int8_g64; all.v:int4_g16; 1-2.k:nvfp4_g16+search",
            "int8_g64/int4_g16 nvfp4_g16+search/int4_g16 nvfp4_g16+search/int4_g16 "
            "int8_g64/int4_g16",
        ),
        ("0-3:bf16;1-1:fp8_e4m3", "bf16/bf16 fp8_e4m3/fp8_e4m3 bf16/bf16 bf16/bf16"),
        ("3, 0 - 2 . k : bf16 ;\n all.v :int4_g16 ", " ".join(["bf16/int4_g16"] * 4)),
        ("0:int8_g64; all:bf16", " ".join(["bf16/bf16"] * 4)),
    ],
)
def test_later_clauses_override_earlier_ones(text, want):
    assert parse_formats(text, 4) == tuple(tuple(pair.split("/")) for pair in want.split())


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("", 0, "a clause that begins with `all` or a layer number"),
        ("   ", 3, "a clause that begins with"),
        ("all:bf16;", 9, "a clause that begins with"),
        ("all:bf16;; 0:bf16", 9, "a clause that begins with"),
        ("; all:bf16", 0, "a clause that begins with"),
        ("layer0:bf16", 0, "a clause that begins with"),
        ("-1:bf16", 0, "a clause that begins with"),
        ("all", 3, "`:` and a codec name"),
        ("all bf16", 4, "`:` and a codec name"),
        ("allbf16", 3, "`:` and a codec name"),
        ("all,1:bf16", 3, "`:` and a codec name"),
        ("0 1:bf16", 2, "`:` and a codec name"),
        ("all:", 4, "a codec name"),
        ("all: ;0:bf16", 5, "a codec name"),
        ("all:fp4", 4, "a codec name. No codec 'fp4'"),
        ("all:int4_g16+search", 4, "int4_g16 does not take 'search'"),
        ("all:bf16 0:bf16", 9, "`;` or the end"),
        ("all:bf16, 0:bf16", 8, "`;` or the end"),
        ("all:bf16; 4:bf16", 10, "a layer below 4, not 4"),
        ("all:bf16; 0-9:bf16", 12, "a layer below 4, not 9"),
        ("all:bf16; 3-1:bf16", 10, "a range that goes up, not 3-1"),
        ("all:bf16; 1-:bf16", 12, "a layer number"),
        ("all:bf16; 1,:bf16", 12, "a layer number"),
        ("all:bf16; 1.q:bf16", 12, "`k` or `v`"),
        ("all:bf16; 1.kv:bf16", 12, "`k` or `v`"),
        ("all:bf16; 1.:bf16", 12, "`k` or `v`"),
        ("0-2:bf16", 8, "a clause for the K of layer 3"),
        ("all.k:bf16; 0.v:bf16", 20, "a clause for the V of layer 1"),
    ],
)
def test_a_bad_text_is_pointed_at(text, at, expected):
    with pytest.raises(ValueError) as caught:
        parse_formats(text, 4)
    message, line, caret = str(caught.value).split("\n")
    assert message.startswith(f"layer formats, character {at}: expected ")
    assert expected in message
    assert line == "  " + text
    assert caret == "  " + " " * at + "^"


def test_no_layers_are_refused():
    with pytest.raises(ValueError, match="num_layers=0"):
        parse_formats("all:bf16", 0)
    with pytest.raises(ValueError, match="no layer"):
        format_text(())
    with pytest.raises(ValueError, match="'fp4'"):
        format_text((("bf16", "fp4"),))


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ("bf16/bf16", "all:bf16"),
        ("bf16/int4_g16 bf16/int4_g16", "all.k:bf16; all.v:int4_g16"),
        (
            "fp8_e4m3/fp8_e4m3 bf16/bf16 bf16/bf16 bf16/bf16 fp8_e4m3/fp8_e4m3 bf16/int4_g16",
            "all:bf16; 0,4:fp8_e4m3; 5.v:int4_g16",
        ),
        (
            "bf16/bf16 fp8_e4m3/fp8_e4m3 fp8_e4m3/fp8_e4m3 bf16/bf16 bf16/bf16",
            "all:bf16; 1,2:fp8_e4m3",
        ),
        (
            "bf16/int4_g16 bf16/int4_g16 int4_g16/int4_g16",
            "all.k:bf16; all.v:int4_g16; 2.k:int4_g16",
        ),
        (" ".join(["int8_g64/bf16"] + ["bf16/bf16"] * 3), "all:bf16; 0.k:int8_g64"),
        (
            " ".join(["bf16/bf16"] * 4 + ["nvfp4_g16+search/bf16"] * 3),
            "all:bf16; 4-6.k:nvfp4_g16+search",
        ),
    ],
)
def test_the_canonical_text_is_short(pairs, text):
    formats = tuple(tuple(pair.split("/")) for pair in pairs.split())
    assert format_text(formats) == text
    assert parse_formats(text, len(formats)) == formats


NAMES = st.sampled_from(CODECS)
FEW_NAMES = st.sampled_from(CODECS[:3])


@given(st.lists(st.one_of(st.tuples(NAMES, NAMES), st.tuples(FEW_NAMES, FEW_NAMES)), min_size=1))
def test_formats_come_back_from_their_text(pairs):
    formats = tuple(pairs)
    text = format_text(formats)
    assert parse_formats(text, len(formats)) == formats
    assert format_text(parse_formats(text, len(formats))) == text


@given(st.text(alphabet="al01234-,.:;kv bf16x\n", max_size=24))
def test_any_text_parses_or_is_a_value_error(text):
    try:
        formats = parse_formats(text, 5)
    except ValueError as error:
        assert "layer formats, character" in str(error)
    else:
        assert len(formats) == 5
