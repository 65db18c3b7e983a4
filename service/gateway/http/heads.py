"""The heads of HTTP requests: which are refused, and how HTTP/1.0 differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

#: the most bytes of a head with its request line, and the most fields; ends of a chunked body are bounded alike
MAX_HEAD: Final = 64 * 1024
MAX_FIELDS: Final = 128
VERSIONS: Final = ("1.0", "1.1")
#: a name or an address with a port, all of which may be missing
_HOST: Final = re.compile(rb"([A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._~%-]+)?\])(:[0-9]{0,5})?")
_QUOTED: Final = 80

Head = Sequence[tuple[bytes, bytes]]


def refusal_of(method: bytes, target: bytes, version: str, head: Head) -> tuple[int, str] | None:
    """Why a request is refused by its head: a status and a message. None if it is not.

    A target has one form, and a host one spelling: so whoever stands before this server sees what this server sees.
    """
    if version not in VERSIONS:
        return 505, f"the version is HTTP/{version}, allowed are {' and '.join(VERSIONS)}"
    if method == b"CONNECT":
        return 501, "the method is CONNECT, and this server is no proxy"
    if (target[:1] != b"/" and target != b"*") or b"#" in target:
        return 400, f"the target is {_quoted(target.partition(b'?')[0])}, allowed is a path that begins with '/'"
    return _refusal_of_fields(version, head)


def _refusal_of_fields(version: str, head: Head) -> tuple[int, str] | None:
    if len(head) > MAX_FIELDS:
        return 431, f"the head has {len(head)} fields, allowed are {MAX_FIELDS}"
    hosts = [value for name, value in head if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return 400, f"the head has {len(hosts)} fields `Host`, expected is one"
    if hosts and not _HOST.fullmatch(hosts[0]):
        return 400, f"`Host` is {_quoted(hosts[0])}, allowed is one name or address, with or without a port"
    codings = b", ".join(value for name, value in head if name == b"transfer-encoding")
    if codings.lower() not in (b"", b"chunked"):
        return 501, f"transfer-encoding is {_quoted(codings)}, allowed is chunked"
    return None


def _quoted(value: bytes) -> str:
    return repr(value[:_QUOTED].decode("latin-1"))


def written(method: bytes, target: bytes, version: str, head: Head) -> bytes:
    """A head as a client sends it."""
    fields = b"".join(b"%b: %b\r\n" % field for field in head)
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), fields)


def without_chunks(cycle: RequestResponseCycle) -> None:
    """An answer to a client of HTTP/1.0, which knows no chunks. Without a length it ends with its connection."""
    send, endless = cycle.send, False

    async def send_plainly(message: ASGISendEvent) -> None:
        nonlocal endless
        if message["type"] == "http.response.start":
            endless = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = False if endless else None
        elif message["type"] == "http.response.body" and endless:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plainly  # type: ignore[method-assign]
