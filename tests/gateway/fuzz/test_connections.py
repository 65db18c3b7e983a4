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
def test_a_connection_cut_midway_harms_no_other(url: str, http: httpx.Client, sent: bytes) -> None:
    with connected(url) as connection:
        connection.sendall(sent)
        answered(http)  # while it hangs
    answered(http)


def test_a_chunked_body_is_a_body(url: str) -> None:
    with connected(url) as connection:
        connection.sendall(HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(GOOD), 7):
            piece = GOOD[at : at + 7]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(64).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /generate HTTP/9.9\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_are_refused(url: str, http: httpx.Client, sent: bytes) -> None:
    with connected(url) as connection:
        try:
            connection.sendall(sent)
            got = connection.recv(4096)
        except ConnectionError:
            got = b""
        assert got == b"" or got.split(b" ", 2)[1][:1] == b"4", got
    answered(http)
