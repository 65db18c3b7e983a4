"""Lines that other processes write to the pipe come out whole on stderr, and a paused terminal blocks no process."""

import io
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from service.cli.serve import LogPipe

WRITER = (
    "import sys; log = open(sys.argv[1], 'a'); [log.write(f'{sys.argv[2]} {n}\\n') or log.flush() for n in range(50)]"
)


def test_lines_of_other_processes_come_out_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LogPipe(tmp_path) as pipe:
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(pipe.path), name]) for name in "ab"]
        assert [writer.wait(30) for writer in writers] == [0, 0]
        with pipe.path.open("a") as late:
            late.write("späť\n")
    stderr_lines = capsys.readouterr().err.splitlines()
    assert sorted(stderr_lines[:-1]) == sorted(f"{name} {number}" for name in "ab" for number in range(50))
    assert stderr_lines[-1] == "späť"
    assert not pipe.path.exists()


class PausedTerminal(io.StringIO):
    """A terminal that takes nothing until the test continues it."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = threading.Event()

    def write(self, text: str) -> int:
        assert self.resumed.wait(60)
        return super().write(text)


LOGGER = (
    "import logging, sys; from service.telemetry.logs import install_logs; "
    "from service.settings.settings import Settings; install_logs(Settings(log_format='json')); "
    "[logging.getLogger('service.x').warning('a line', extra={'number': n}) for n in range(5000)]; "
    "sys.stdout.write('logged'); sys.stdout.flush(); sys.stdin.read(); "
    "logging.getLogger('service.x').warning('the last line')"
)


def test_a_paused_terminal_blocks_no_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = PausedTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with LogPipe(tmp_path):
        replica = subprocess.Popen(
            [sys.executable, "-c", LOGGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert replica.stdout.read(6) == "logged"
        terminal.resumed.set()
        while terminal.getvalue().count("\n") < 200:  # the pipe has room again
            time.sleep(0.01)
        replica.communicate("", timeout=60)
    lines = [json.loads(line) for line in terminal.getvalue().splitlines()]
    dropped = sum(line.get("dropped", 0) for line in lines)
    assert len([line for line in lines if "number" in line]) + dropped == 5000
    assert dropped > 1000
    assert lines[-1]["message"] == "the last line"
