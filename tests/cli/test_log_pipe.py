"""Lines that other processes write to the pipe come out whole on stderr, and a paused terminal blocks no process."""

import subprocess
import sys
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
