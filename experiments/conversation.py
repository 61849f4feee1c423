"""Real text as byte tokens: a coding conversation, and what other requests ask in between.

The tool outputs are source files of Python's own standard library, in an order that depends on
their names alone. A file of JSON lines with `input`, `output`, `session_id` and `timestamp` (an
agent's trace) gives the conversation instead.
"""

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Tokens = tuple[int, ...]

_SYSTEM = "[system]\nYou read and repair Python. Say what a file does before you change it.\n"
_ANSWER = "\n\n[assistant]\n"


class Other(NamedTuple):
    """A request that is not the conversation's.

    Attributes:
      label: what tables and pictures call it.
      tokens: its prompt.
    """

    label: str
    tokens: Tokens


class Script(NamedTuple):
    """What is asked, in order; answers are the model's.

    Attributes:
      source: where the text is from.
      first: the conversation so far: the prompt of its first request here.
      follow: what is said after the answer; the measured prompt is first + answer + follow.
      others: the requests between the two.
    """

    source: str
    first: Tokens
    follow: Tokens
    others: tuple[Other, ...]


class File(NamedTuple):
    """A source file of the standard library."""

    name: str
    text: bytes


def to_tokens(text: bytes) -> Tokens:
    """Bytes are tokens."""
    return tuple(text)


def library_files() -> Iterator[File]:
    """Modules of the standard library of 4 to 64 KiB, in the order of their names' digests."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = [p for p in folder.glob("*.py") if 4096 <= p.stat().st_size <= 65536]
    for path in sorted(paths, key=lambda p: hashlib.sha256(p.name.encode()).digest()):
        yield File(path.name, path.read_bytes())


def coding_conversation(files: Iterator[File], num_tokens: int, num_follow: int):
    """(first prompt, what the user says next), of exactly so many tokens."""
    file = next(files)
    text = f"{_SYSTEM}\n[user]\nWhat does {file.name} do?{_ANSWER}I will read it.".encode()
    while len(text) < num_tokens:
        text += f"\n\n[tool] cat {file.name}\n".encode() + file.text
        text += f"{_ANSWER}{file.name} needs no change.".encode()
        file = next(files)
        text += f"\n\n[user]\nThen look at {file.name}, too.{_ANSWER}Reading it.".encode()
    follow = f"\n\n[user]\nGood. This is what {file.name} has now:\n".encode() + file.text
    return _ending(text, num_tokens), _ending(follow, num_follow)


def trace_conversation(path: Path, num_tokens: int, num_follow: int):
    """(first prompt, what comes next, the session's answers), from an agent's trace.

    Of the session with the longest input, the requests that this input extends are its history, by
    length and then time. The first prompt is the longest of them that fits into `num_tokens`, and
    the next one's further text follows; if even the shortest does not fit, the longest is cut.

    Raises:
      ValueError: if the file holds no request, or the session's text is too short.
    """
    requests = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if not requests:
        raise ValueError(f"agent_trace={path} holds no request.")
    longest = max(requests, key=lambda r: len(r["input"]))
    session = [r for r in requests if r["session_id"] == longest["session_id"]]
    session.sort(key=lambda r: (len(r["input"]), r.get("timestamp", 0)))
    chain = [r["input"].encode() for r in session if longest["input"].startswith(r["input"])]
    chain = list(dict.fromkeys(chain))
    fitting = [i for i, text in enumerate(chain[:-1]) if len(text) <= num_tokens]
    if fitting:
        first = chain[fitting[-1]]
        follow = chain[fitting[-1] + 1][len(first) :][:num_follow]
    else:
        first, follow = chain[-1][:num_tokens], chain[-1][num_tokens:][:num_follow]
    if not first or not follow:
        raise ValueError(
            f"agent_trace={path} has {len(chain[-1])} tokens in its longest session: too few for "
            f"a conversation of {num_tokens} that goes on."
        )
    return first, follow, [r["output"].encode() for r in session]


def churn_script(
    trace: Path | None, *, num_tokens: int, num_follow: int, num_others: int, other_tokens: int
) -> Script:
    """A conversation with short requests of other content in between, as for its title."""
    files = library_files()
    if trace is None:
        source = "the standard library"
        first, follow = coding_conversation(files, num_tokens, num_follow)
        bodies = [next(files).text for _ in range(num_others)]
    else:
        source = trace.name
        first, follow, answers = trace_conversation(trace, num_tokens, num_follow)
        bodies = [answers[i % len(answers)] for i in range(num_others)]
    others = []
    for number, body in enumerate(bodies, 1):
        text = f"Title {number}: name this change in five words.\n\n".encode() + body
        text += next(files).text  # short answers are filled up
        others.append(Other(f"aux {number}", to_tokens(_ending(text, other_tokens))))
    return Script(source, to_tokens(first), to_tokens(follow), tuple(others))


def flush_script(
    trace: Path | None, *, num_tokens: int, num_follow: int, other_tokens: int
) -> Script:
    """A conversation with two long documents in between."""
    script = churn_script(
        trace, num_tokens=num_tokens, num_follow=num_follow, num_others=0, other_tokens=0
    )
    files, others = library_files(), []
    for letter in "AB":
        text = f"Document {letter}. Sum it up.\n\n".encode()
        while len(text) < other_tokens:
            text += next(files).text
        others.append(Other(f"flush {letter}", to_tokens(_ending(text, other_tokens))))
    return script._replace(others=tuple(others))


def _ending(text: bytes, num_tokens: int) -> bytes:
    """Exactly so many bytes, with the assistant to speak next."""
    ending = _ANSWER.encode()
    if num_tokens <= len(ending) or len(text) < num_tokens - len(ending):
        raise ValueError(f"{len(text)} bytes of text do not give a prompt of {num_tokens} tokens.")
    return text[: num_tokens - len(ending)] + ending
