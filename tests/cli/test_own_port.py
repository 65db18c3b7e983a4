"""The program's own requests to the service, with servers of other sorts in its place."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.cli.own_port import OwnPort
from tests.service.running import DEAD_PROXIES


@contextmanager
def server(answer: bytes) -> Iterator[OwnPort]:
    """Sends these bytes to the first client, and closes its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield OwnPort("0.0.0.0", listening.getsockname()[1])
        thread.join()


def response(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (response("200 OK", '{"status": "ok"}'), ""),
        (response("503 no", '{"error": {"message": "no replica"}}'), "/health is 503: no replica"),
        (response("404 no", "Path '/health' not found."), "/health is 404: \"Path '/health' not found.\""),
        (response("500 no", '{"error": "x"}'), '/health is 500: \'{"error": "x"}\''),
        (response("204 no", ""), "/health is 204: ''"),
        (b"", " cannot be asked: RemoteDisconnected"),
        (b"SSH-2.0-x\r\n", " cannot be asked: BadStatusLine"),
    ],
)
def test_health_is_only_what_was_answered(monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str) -> None:
    for name, value in DEAD_PROXIES.items():
        monkeypatch.setenv(name, value)
    with server(answer) as port:
        seen = port.unhealthy()
    assert seen.startswith(f"{port.url}{reason}") if reason else not seen


def test_a_port_where_nobody_listens_is_unhealthy() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        assert "ConnectionRefusedError" in OwnPort("127.0.0.1", reserved.getsockname()[1]).unhealthy()


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fe80::1", "[fe80::1]"), ("localhost", "localhost")]
)
def test_an_address_that_listens_everywhere_is_asked_on_loopback(host: str, url: str) -> None:
    assert OwnPort(host, 8000).url == f"http://{url}:8000"
