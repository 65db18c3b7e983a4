"""The prefixes of a prompt as numbers (keys), which are the same in every process.

A key stands for the prompt up to a boundary: the ends of chat messages, and growing distances. Two different prefixes
may have the same key, which costs a prefill; the answer stays the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any
from zlib import crc32

from service.messages.wire import ReplicaRequest

#: the first boundary, and the shortest distance between two: in characters, and in tokens of about four characters
_CHARACTERS = 64
_TOKENS = 16
#: number of boundaries between a length and twice that length
_PER_DOUBLING = 4
#: the number of last messages whose ends are boundaries
_MESSAGES = 8
#: the boundary, in multiples of the first, whose key gives an unknown prompt its home
_HOME = 4


@dataclass(frozen=True, slots=True)
class PrefixKeys:
    """The keys of a prompt."""

    keys: tuple[int, ...] = ()  # the shortest prefix first
    shares: tuple[float, ...] = ()  # the part of the prompt that each key covers
    session: int | None = None  # the key of the conversation, if the client names one
    #: the key by which every ingress picks the same replica for an unknown prompt; None if the prompt is too short
    home: int | None = None


def prefix_keys(request: ReplicaRequest) -> PrefixKeys:
    """The keys of a request's prompt. Requests of different cache salts (or API keys) have no key in common."""
    salt, session = request.sharing.cache_salt, None
    if request.session:
        session = _digest("session", request.sharing.tenant, salt, request.session)
    if (ids := request.token_ids) is not None:
        ends = [*boundaries(len(ids), _TOKENS), len(ids)]
        return _keys(ends, _of_ids(ids, ends, _digest("ids", salt)), session, _TOKENS * _HOME)
    if request.messages is None:
        text, kind, home = request.text or "", "text", _CHARACTERS * _HOME
        ends = [*boundaries(len(text), _CHARACTERS), len(text)]
    else:
        text, message_ends, home = _chat(request.messages, request.tools)
        kind, ends = "chat", sorted({*boundaries(len(text), _CHARACTERS), *message_ends})
    return _keys(ends, _of_text(text, ends, _digest(kind, salt)), session, home)


def _chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[str, list[int], int]:
    prefix = "".join(f"{tool}\x1f" for tool in tools)
    texts = [f"{message['role']}\x1e{message['content']}{message.get('tool_calls', '')}\x1f" for message in messages]
    texts[0] = prefix + texts[0]
    ends = list(accumulate(map(len, texts)))
    home = next((end for end, message in zip(ends, messages, strict=True) if message["role"] == "user"), ends[0])
    return "".join(texts), [*ends[-_MESSAGES:], home], home


def _keys(ends: Sequence[int], keys: Sequence[int], session: int | None, home: int) -> PrefixKeys:
    shares = tuple(end / max(1, ends[-1]) for end in ends)
    begins_at_home = keys[ends.index(home)] if home in ends else None
    return PrefixKeys(tuple(keys), shares, session, begins_at_home if session is None else session)


# Python's hash of numbers is the same in every process. Its hash of texts is not.


def _of_text(text: str, ends: Sequence[int], seed: int) -> list[int]:
    """The key up to every end. A key does not depend on the other ends, which change as a chat grows."""
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
    """The boundaries below `length`, the same for all prompts. `step`: the first one."""
    end = step
    while end < length:
        yield end
        end += max(step, 2 ** (end.bit_length() - 1) // _PER_DOUBLING)


def _digest(*parts: str) -> int:
    text = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=7).digest(), "big")
