"""Misbehaving connections: bodies cut midway, headers that never end. Other requests are answered meanwhile."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.gateway.fuzz.test_bodies import GOOD

HEAD = b"POST /generate HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(GOOD), GOOD)


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    parsed = httpx.URL(url)
    with socket.create_connection((parsed.host, parsed.port), timeout=30) as connection:
        yield connection


def answered(http: httpx.Client) -> None:
    assert http.post("/generate", content=GOOD).status_code == 200
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /gen",
        HEAD,
        HEAD + b"Content-Length: 500\r\n\r\n" + GOOD,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK[:-10],
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n{",
        HEAD + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
    ],
)
def test_a_connection_cut_midway_harms_no_other(url, http, sent):
    with connected(url) as connection:
        connection.sendall(sent)
        answered(http)  # while it hangs
    answered(http)
