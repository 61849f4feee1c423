"""Which codec each layer's K and V are stored in, as a compact text.

    "all:int8_g64; 0,1,3:nvfp4_g16; 4-7.v:int4_g16"

Clauses are separated by `;`, and a later one overrides an earlier one. A clause is a selector, a
colon and a codec name. A selector is `all`, or layer numbers and ranges (both ends included)
separated by commas; with `.k` or `.v` after it, it addresses only K or only V. Spaces may stand
between any two of these parts.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final, NoReturn

from tiercache.codecs import get_codec

type LayerFormats = tuple[tuple[str, str], ...]

_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"[0-9]+")
_WORD: Final = re.compile(r"[A-Za-z0-9_+]+")
_SIDES: Final = {"k": (0,), "v": (1,), "": (0, 1)}


class _Scanner:
    """A position in the text of formats."""

    def __init__(self, text: str, num_layers: int):
        self.text = text
        self.num_layers = num_layers
        self.at = 0

    def fail(self, expected: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        line = re.sub(r"\s", " ", self.text)
        raise ValueError(
            f"layer formats, character {at}: expected {expected}.\n  {line}\n  {' ' * at}^"
        )

    def take(self, pattern: re.Pattern[str]) -> str:
        """What matches here, or the empty string, and the spaces after it."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        self.skip_spaces()
        return found.group()

    def take_char(self, char: str) -> bool:
        """Whether `char` is next; then it and the spaces after it are taken."""
        if not self.text.startswith(char, self.at):
            return False
        self.at += 1
        self.skip_spaces()
        return True

    def skip_spaces(self):
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def layer(self) -> int:
        start = self.at
        digits = self.take(_NUMBER)
        if not digits:
            self.fail("a layer number")
        if int(digits) >= self.num_layers:
            self.fail(f"a layer below {self.num_layers}, not {digits}", start)
        return int(digits)

    def layers(self) -> list[int]:
        start = self.at
        if self.text.startswith("all", start):
            self.at += len("all")
            self.skip_spaces()
            return list(range(self.num_layers))
        if _NUMBER.match(self.text, start) is None:
            self.fail("a clause that begins with `all` or a layer number")
        chosen = self.layer_range()
        while self.take_char(","):
            chosen += self.layer_range()
        return chosen

    def layer_range(self) -> list[int]:
        start = self.at
        first = self.layer()
        last = self.layer() if self.take_char("-") else first
        if last < first:
            self.fail(f"a range that goes up, not {first}-{last}", start)
        return list(range(first, last + 1))

    def sides(self) -> tuple[int, ...]:
        if not self.take_char("."):
            return _SIDES[""]
        start = self.at
        side = self.take(_WORD)
        if side not in ("k", "v"):
            self.fail("`k` or `v`", start)
        return _SIDES[side]

    def codec(self) -> str:
        start = self.at
        name = self.take(_WORD)
        if not name:
            self.fail("a codec name")
        try:
            return get_codec(name).name
        except ValueError as error:
            self.fail(f"a codec name. {str(error).rstrip('.')}", start)


def parse_formats(text: str, num_layers: int) -> LayerFormats:
    """The codec names of each layer's K and V, of all `num_layers` layers.

    Raises:
      ValueError: on a text that does not read as clauses, an unknown codec or layer, or one that
        leaves a layer without a format; it names the character, counted from 0, and points at it.
    """
    if num_layers < 1:
        raise ValueError(f"num_layers={num_layers} is not at least 1.")
    scanner = _Scanner(text, num_layers)
    formats: list[list[str | None]] = [[None, None] for _ in range(num_layers)]
    scanner.skip_spaces()
    while True:
        layers, sides = scanner.layers(), scanner.sides()
        if not scanner.take_char(":"):
            scanner.fail("`:` and a codec name")
        codec = scanner.codec()
        for layer in layers:
            for side in sides:
                formats[layer][side] = codec
        if scanner.at == len(text):
            break
        if not scanner.take_char(";"):
            scanner.fail("`;` or the end")
    return _complete(scanner, formats)


def _complete(scanner: _Scanner, formats: list[list[str | None]]) -> LayerFormats:
    pairs = []
    for layer, (k, v) in enumerate(formats):
        if k is None or v is None:
            scanner.fail(f"a clause for the {'K' if k is None else 'V'} of layer {layer}")
        pairs.append((k, v))
    return tuple(pairs)


def format_text(formats: LayerFormats) -> str:
    """The canonical text of some layers' formats: `parse_formats` reads them back from it.

    The commonest codec of K and of V (the first layer's among equals) go first, as `all`; then
    layers that differ from that in both and have one codec, then other K, then other V.

    Raises:
      ValueError: if there is no layer, or a name that `get_codec` does not know.
    """
    if not formats:
        raise ValueError("formats of no layer have no text.")
    names = [tuple(get_codec(name).name for name in pair) for pair in formats]
    common = tuple(Counter(side).most_common(1)[0][0] for side in zip(*names, strict=True))
    if common[0] == common[1]:
        clauses = [f"all:{common[0]}"]
    else:
        clauses = [f"all.k:{common[0]}", f"all.v:{common[1]}"]
    others: dict[tuple[str, str], list[int]] = {}
    for layer, (k, v) in enumerate(names):
        if k == v and k != common[0] and v != common[1]:
            others.setdefault(("", k), []).append(layer)
            continue
        for side, name, usual in ((".k", k, common[0]), (".v", v, common[1])):
            if name != usual:
                others.setdefault((side, name), []).append(layer)
    for side, name in sorted(others, key=lambda key: (key[0], others[key])):
        clauses.append(f"{_selector(others[side, name])}{side}:{name}")
    return "; ".join(clauses)


def _selector(layers: Iterable[int]) -> str:
    """Ascending layers as numbers and ranges: [0, 1, 4, 5, 6] is "0,1,4-6"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(layer) for layer in run]
    return ",".join(parts)
