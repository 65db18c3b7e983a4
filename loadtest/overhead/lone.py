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


def lone(alone: Alone, url: str, bodies: Sequence[Json]) -> list[Lone]:
    """Sends each body to both in turn, over one connection. The first requests are the warm-up."""
    address, singles = httpx.URL(url), []
    connection = http.client.HTTPConnection(address.host, address.port, timeout=120)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small packets are sent at once
    for body in bodies:
        engine, content = alone.seconds(body), json.dumps(body)
        began = time.perf_counter()
        connection.request("POST", "/generate", content, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        seconds = time.perf_counter() - began
        singles.append(Lone(engine, seconds, json.loads(answer)["stats"]["total_ms"] / 1000))
    connection.close()
    return singles[len(singles) // 10 :]
