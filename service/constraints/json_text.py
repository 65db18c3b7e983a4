"""Reads JSON that clients send, as leniently as a conversation needs: their answers come back as history.

Half of a surrogate pair, as a text that was cut in JavaScript has it, reads as U+FFFD. A byte order mark is skipped.
"""

import codecs
import re
import sys
from typing import Any, Final

from pydantic_core import from_json

#: text without halves of surrogate pairs (group 1), or one half; a JSON text has backslashes in its texts only
_HALVES: Final = re.compile(
    rb"((?:[^\\]++|\\(?:[^u]|u(?:[^dD]|[dD](?:[0-7]|[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]))))++)|\\u[dD][89a-fA-F]..",
    re.DOTALL,
)
_REPLACEMENT: Final = b"\\ufffd"
#: the most halves in one text, and as many texts between them; it bounds the time
_MOST_HALVES: Final = 2 * 1024
_LARGEST: Final = sys.float_info.max
#: levels around a part of a text, so that the part has room in another text
_ROOM: Final = 10
#: where the library's limit of levels is exceeded, counted in bytes
_TOO_DEEP: Final = re.compile(r"recursion limit exceeded at line (\d+) column (\d+)")


def read_json(content: bytes | str) -> Any:
    """The value of a JSON text. ValueError if it is none.

    Values may have 200 levels, integers 4,300 digits.
    """
    return _read(_bytes(content), partial=False)


def read_json_part(content: str) -> Any:
    """The value of a JSON text, or of a text that was cut its complete part. ValueError if it is no JSON.

    Values below level 190 are left out, so that the value may be a part of a further JSON text.
    """
    content_in_room = b"[" * _ROOM + _bytes(content)
    try:
        value = _read(content_in_room, partial=True)
    except ValueError as error:
        if (limit := _TOO_DEEP.search(str(error))) is None:
            raise
        lines = content_in_room.split(b"\n")[: int(limit[1])]
        lines[-1] = lines[-1][: int(limit[2]) - 1]
        value = _read(b"\n".join(lines), partial=True)
    for _ in range(_ROOM):
        [value] = value
    return value


def _bytes(content: bytes | str) -> bytes:
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return content.removeprefix(codecs.BOM_UTF8)


def _read(content: bytes, *, partial: bool) -> Any:
    try:
        return from_json(content, allow_inf_nan=False, allow_partial=partial)
    except ValueError:
        if (whole := _HALVES.sub(lambda match: match[1] or _REPLACEMENT, content, _MOST_HALVES)) == content:
            raise
        return from_json(whole, allow_inf_nan=False, allow_partial=partial)


def finite(value: Any) -> Any:
    """The value with the largest float instead of each number beyond it, which JSON cannot write."""
    if isinstance(value, float):
        return max(-_LARGEST, min(_LARGEST, value))
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value
