"""Requests one by one over one connection: their time, and the time of the engine for the same."""

import http.client
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from loadtest.generator.workload import Json
from loadtest.overhead.alone import Alone


@dataclass(frozen=True)
class Lone:
    """The seconds of a request at the engine alone, over HTTP, and by the service's own count."""

    alone: float
    over_http: float
    inside: float


class Connection:
    """A connection that stays open. Small packets are sent at once."""

    def __init__(self, url: str) -> None:
        address = httpx.URL(url)
        self._http = http.client.HTTPConnection(address.host, address.port, timeout=120)
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def seconds(self, method: str, path: str, body: Json | None = None) -> tuple[float, bytes]:
        content = None if body is None else json.dumps(body)
        began = time.perf_counter()
        self._http.request(method, path, content, {"Content-Type": "application/json"} if content else {})
        answer = self._http.getresponse().read()
        return time.perf_counter() - began, answer

    def close(self) -> None:
        self._http.close()


def lone(alone: Alone, url: str, bodies: Sequence[Json]) -> list[Lone]:
    """Sends each body to both in turn. The first requests are the warm-up."""
    connection, singles = Connection(url), []
    for body in bodies:
        engine = alone.seconds(body)
        seconds, answer = connection.seconds("POST", "/generate", body)
        singles.append(Lone(engine, seconds, json.loads(answer)["stats"]["total_ms"] / 1000))
    connection.close()
    return singles[len(singles) // 10 :]


def live(urls: Sequence[str], count: int) -> list[list[float]]:
    """The seconds of `count` GET /live at each address, in turn."""
    connections = [Connection(url) for url in urls]
    rounds = [[connection.seconds("GET", "/live")[0] for connection in connections] for _ in range(count)]
    for connection in connections:
        connection.close()
    return [list(column) for column in zip(*rounds[count // 10 :], strict=True)]
