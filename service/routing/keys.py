"""The beginnings of a prompt as numbers: what two requests share, two tables in two processes can compare.

A key stands for everything up to a boundary. Boundaries lie the further apart the longer the prompt is, and where the
messages of a chat end: some dozens for any length. Two beginnings of one key need not be the same; a wrong guess costs
a prefill, never an answer. Knows no tokenizer, no replicas and no Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from zlib import crc32

from service.wire import Work

#: the first boundary and the shortest way between two: characters, and tokens, which stand for some four each
_CHARACTERS = 64
_TOKENS = 16
#: boundaries between a length and its double
_PER_DOUBLING = 4
#: messages whose ends are boundaries, from the last one backwards
_MESSAGES = 8
#: the boundary, in first steps, by which a prompt that nobody has seen is given a home
_HOME = 4


@dataclass(frozen=True, slots=True)
class PrefixKeys:
    """The keys of a prompt, the shortest beginning first. `shares[i]`: how much of the prompt `keys[i]` stands for.

    `session`: the key of the conversation, if the client names one. `home`: what a replica is picked by, by every
    ingress alike, where no table knows the prompt; None where it is too short.
    """

    keys: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    session: int | None = None
    home: int | None = None


def prefix_keys(work: Work) -> PrefixKeys:
    """The keys of a work's prompt. Works of different cache salts, so of different API keys, have none in common."""
    session = _digest("session", work.tenant, work.cache_salt, work.session) if work.session else None
    if work.token_ids is not None:
        ends = [*boundaries(len(work.token_ids), _TOKENS), len(work.token_ids)]
        return _keys(ends, _of_ids(work.token_ids, ends, _digest("ids", work.cache_salt)), session, _TOKENS * _HOME)
    if work.messages is None:
        text = work.text or ""
        ends = [*boundaries(len(text), _CHARACTERS), len(text)]
        return _keys(ends, _of_text(text, ends, _digest("text", work.cache_salt)), session, _CHARACTERS * _HOME)
    text, more, asked = _chat(work.messages)
    ends = sorted({*boundaries(len(text), _CHARACTERS), *more})
    return _keys(ends, _of_text(text, ends, _digest("chat", work.cache_salt)), session, asked)


def _chat(messages: Sequence[Mapping[str, str]]) -> tuple[str, list[int], int]:
    """A chat as a text, where its last messages end, and where what the user first asked does, its home."""
    texts = [f"{message['role']}\x1e{message['content']}\x1f" for message in messages]
    ends = list(accumulate(map(len, texts)))
    asked = next((end for end, message in zip(ends, messages, strict=True) if message["role"] == "user"), ends[0])
    return "".join(texts), [*ends[-_MESSAGES:], asked], asked


def _keys(ends: Sequence[int], keys: Sequence[int], session: int | None, home: int) -> PrefixKeys:
    shares = tuple(end / max(1, ends[-1]) for end in ends)
    begins_at_home = keys[ends.index(home)] if home in ends else None
    return PrefixKeys(tuple(keys), shares, session, begins_at_home if session is None else session)


# Python's hash of numbers is the same in every process, that of texts is not.


def _of_text(text: str, ends: Sequence[int], seed: int) -> list[int]:
    """The keys up to every end, whichever other ends there are: those of a chat move on with it."""
    starts, check = [0, *ends], 0
    checks = [
        check := crc32(text[start:end].encode("utf-8", "surrogatepass"), check)
        for start, end in zip(starts, ends, strict=False)
    ]
    return [hash((seed, end, check)) for end, check in zip(ends, checks, strict=True)]


def _of_ids(ids: tuple[int, ...], ends: Sequence[int], seed: int) -> list[int]:
    starts, key = [0, *ends], seed
    return [key := hash((key, ids[start:end])) for start, end in zip(starts, ends, strict=False)]


def boundaries(length: int, step: int) -> Iterator[int]:
    """Where the beginnings of a prompt end that are looked up: the same for all prompts, as far as they go."""
    end = step
    while end < length:
        yield end
        end += max(step, 2 ** (end.bit_length() - 1) // _PER_DOUBLING)


def _digest(*parts: str) -> int:
    text = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=7).digest(), "big")
