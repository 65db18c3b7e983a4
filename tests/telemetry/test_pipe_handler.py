"""Log lines to a named pipe without a reader: logging never waits, and lost lines are counted."""

import json
import logging
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.settings.settings import LOG_PIPE, Settings
from service.telemetry import logs
from service.telemetry.logs import install_logs

#: more than a pipe holds
LINES = 1500


@pytest.fixture(autouse=True)
def no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the handler from writing to a pipe with room by itself, so that only the test's lines are written."""
    monkeypatch.setattr(logs, "_AGAIN_S", 3600.0)


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a pipe that is read from; the service logs into the other one."""
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv(LOG_PIPE, str(path))
    install_logs(Settings(log_format="json"))
    yield reader
    os.close(reader)


def read(reader: int) -> list[dict[str, Any]]:
    """All lines that are there."""
    content = b""
    while True:
        try:
            part = os.read(reader, 2**16)
        except BlockingIOError:
            break
        if not part:
            break
        content += part
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def log(count: int, text: str = "a line") -> None:
    """Logs so many lines on a thread of its own, which must not be held up."""

    def lines() -> None:
        for number in range(count):
            logging.getLogger("service.some.where").warning(text, extra={"number": number})

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "logging waits for a reader"


def test_a_pipe_that_is_not_read_holds_nobody_up(pipe: int) -> None:
    log(LINES)
    came = read(pipe)
    assert [line["number"] for line in came] == list(range(len(came)))
    assert 100 < len(came) < LINES
    log(1, "read again")
    report, last = read(pipe)
    assert (report["level"], report["dropped"]) == ("warning", LINES - len(came))
    assert (last["message"], last["number"]) == ("read again", 0)


def test_dropped_lines_are_reported_without_further_lines(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_AGAIN_S", 0.01)
    log(LINES)
    lines = read(pipe)
    if "dropped" not in lines[-1]:  # the handler writes as soon as there is room, perhaps while the lines are read
        assert select.select([pipe], [], [], 20)[0]
        lines += read(pipe)
    *came, report = lines
    assert [line["number"] for line in came] == list(range(len(came)))
    assert report["dropped"] == LINES - len(came)


def test_the_end_of_the_service_says_it_too(pipe: int) -> None:
    log(LINES)
    came = read(pipe)
    logging.getLogger("service").handlers[0].close()
    assert [line["dropped"] for line in read(pipe)] == [LINES - len(came)]


def test_the_rest_of_a_line_comes_before_the_next(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 100
    real = os.write

    def write(descriptor: int, content: bytes) -> int:
        nonlocal room
        if content and not room:
            raise BlockingIOError
        written = real(descriptor, content[:room])
        room -= written
        return written

    monkeypatch.setattr(logs.os, "write", write)
    log(1, "first " * 50)  # a part
    log(1, "second")  # nothing
    room = 10
    log(1, "third")  # a part of the first line
    room = 10_000
    log(1, "fourth")
    first, report, last = read(pipe)
    assert (first["message"], report["dropped"], last["message"]) == ("first " * 50, 2, "fourth")


def test_logging_needs_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "log")
    monkeypatch.setenv(LOG_PIPE, str(tmp_path / "log"))
    start = threading.Thread(target=install_logs, args=(Settings(),), daemon=True)
    start.start()
    start.join(20)
    assert not start.is_alive(), "the service waits for a reader before it starts"
    log(LINES)
