"""What a hostile client does, one function for each attack. `loadtest.chaos.attacks` runs each in a process of its own.

The clients have the key `alice` where no other is named. An attack is cancelled when its time is over. It counts what
it saw in `ends`.
"""

import asyncio
import json
import resource
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

MIB = 2**20
_CHAT, _COUNT = "/v1/chat/completions", "/v1/messages/count_tokens"
_PROMPT = [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}]
#: an answer as long as the demo's model allows, in the most bytes
_LONG: dict[str, Any] = {"model": "demo", "messages": _PROMPT, "max_tokens": 900, "ignore_eos": True}
_WIDE = _LONG | {"stream": True, "logprobs": True, "top_logprobs": 20}
#: bytes of a receive buffer, so that the client's system takes little of what the client does not read
_WINDOW = 4096


@dataclass(frozen=True)
class Target:
    """The service under attack. `folder`: its log's and Ray's file system. `seconds`: the attack's time."""

    host: str
    port: int
    ingress: int
    folder: Path
    seconds: float


Attack = Callable[[Target, Counter[str]], Awaitable[None]]


class Client:
    """Requests of one key, and how they ended."""

    def __init__(self, target: Target, session: aiohttp.ClientSession, key: str, ends: Counter[str]) -> None:
        self._url, self._session, self._ends = f"http://{target.host}:{target.port}", session, ends
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    async def post(self, path: str, body: bytes | dict[str, Any]) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            async with self._session.post(self._url + path, data=data, headers=self._headers) as response:
                await response.read()
                self._ends[str(response.status)] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            self._ends[type(error).__name__] += 1


def _requests(work: Callable[[Client], Awaitable[Any]], key: str = "alice") -> Attack:
    async def attack(target: Target, ends: Counter[str]) -> None:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await work(Client(target, session, key, ends))

    return attack


def _head(path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: a", "Authorization: Bearer alice", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


async def _connect(target: Target) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (target.host, target.port))
    return connection


async def _hold(target: Target, ends: Counter[str], connections: int, content: bytes = b"") -> None:
    """Connections that send this and read nothing."""
    held = []
    for _ in range(connections):
        held.append(await _connect(target))
        if content:
            await asyncio.get_running_loop().sock_sendall(held[-1], content)
        ends["connected"] += 1
    await asyncio.sleep(target.seconds)


def _stream(answers: int) -> bytes:
    body = json.dumps(_WIDE | {"n": answers}).encode()
    return _head(_CHAT, len(body)) + body


async def endless_bodies(target: Target, ends: Counter[str]) -> None:
    loop, held = asyncio.get_running_loop(), list[socket.socket]()
    for _ in range(3000):
        held.append(await _connect(target))
        await loop.sock_sendall(held[-1], _head("/generate", MIB - 1) + b"{")
        ends["connected"] += 1
    while True:
        await asyncio.sleep(4)
        for connection in [*held]:
            try:
                await loop.sock_sendall(connection, b" ")
            except OSError:  # the service has ended it
                held.remove(connection)
        ends["left"] = len(held)


async def long_header(target: Target, ends: Counter[str]) -> None:
    connection, loop = await _connect(target), asyncio.get_running_loop()
    try:
        await loop.sock_sendall(connection, b"GET /health HTTP/1.1\r\nHost: a\r\nX-Long: ")
        for _ in range(64):
            await loop.sock_sendall(connection, b"a" * MIB)
        await loop.sock_sendall(connection, b"\r\n\r\n")
        ends[(await loop.sock_recv(connection, 64)).partition(b"\r\n")[0].decode() or "closed"] += 1
    except OSError as error:
        ends[type(error).__name__] += 1


async def _wrong_bodies(client: Client) -> None:
    body = b'{"messages":[' + b",".join([b"1"] * (MIB // 2 - 100)) + b"]}"
    await asyncio.gather(*(client.post("/generate", body) for _ in range(10)))


async def _wrong_parts(client: Client) -> None:
    parts = b",".join([b"1"] * (MIB // 2 - 100))
    body = b'{"model":"demo","max_tokens":4,"messages":[{"role":"user","content":[' + parts + b"]}]}"
    await asyncio.gather(*(client.post("/v1/messages", body) for _ in range(20)))


async def _multiples(client: Client) -> None:
    parts = {f"p{number}": {"type": "integer", "multipleOf": 99991 + 2 * number} for number in range(12)}
    schema = {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    await client.post(_CHAT, {"model": "demo", "messages": _PROMPT, "max_tokens": 32, "response_format": form})


async def _ambiguous(client: Client) -> None:
    names = [f"x{number}" for number in range(12)]
    choices = " | ".join([*(f"e {name} e" for name in names), '"a"'])
    rules = ['start: e "q"', f"e: {choices}", *(f'{name}: "a"' for name in names)]
    await client.post(_CHAT, _LONG | {"ignore_eos": False, "temperature": 2, "n": 64, "grammar": "\n".join(rules)})


async def _all_places(client: Client) -> None:
    await client.post(_CHAT, _LONG | {"n": 128})


async def _endless(client: Client) -> None:
    body = {"messages": _PROMPT, "max_new_tokens": 2**31 - 1}
    await asyncio.gather(*(client.post("/generate", body) for _ in range(8)))


async def _counts(client: Client) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "a b " * (MIB // 4 - 100)}]}
    await asyncio.gather(*(client.post(_COUNT, body) for _ in range(16)))


async def _refused(client: Client) -> None:
    async def again() -> None:
        while True:
            await client.post("/generate", {"messages": _PROMPT, "max_new_tokens": 0})

    await asyncio.gather(*(again() for _ in range(32)))


async def few_handles(target: Target, ends: Counter[str]) -> None:
    before = resource.prlimit(target.ingress, resource.RLIMIT_NOFILE)
    resource.prlimit(target.ingress, resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        await _hold(target, ends, 400)
    finally:
        resource.prlimit(target.ingress, resource.RLIMIT_NOFILE, before)


async def _full(folder: Path, target: Target, ends: Counter[str]) -> None:
    path = folder / "filling"
    try:
        with suppress(OSError), path.open("wb", buffering=0) as file:
            while file.write(b"\0" * MIB):
                ends["mib"] += 1
        await asyncio.sleep(target.seconds)
    finally:
        path.unlink()


#: name of an attack -> what does it
ATTACKS: dict[str, Attack] = {
    "one_unread_stream": partial(_hold, connections=1, content=_stream(answers=128)),
    "unread_streams": partial(_hold, connections=100, content=_stream(answers=1)),
    "wrong_bodies": _requests(_wrong_bodies),
    "wrong_parts": _requests(_wrong_parts),
    "multiples": _requests(_multiples),
    "ambiguous_grammar": _requests(_ambiguous, "limited"),
    "long_header": long_header,
    "idle_connections": partial(_hold, connections=3000),
    "endless_bodies": endless_bodies,
    "all_places": _requests(_all_places),
    "endless_answers": _requests(_endless),
    "token_counts": _requests(_counts),
    "refused_requests": _requests(_refused, "limited"),
    "few_handles": few_handles,
    "full_disk": lambda target, ends: _full(target.folder, target, ends),
    "full_shared_memory": partial(_full, Path("/dev/shm")),  # noqa: S108 - the runner has one of its own
}
