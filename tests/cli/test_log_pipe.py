"""What other processes write to the pipe comes out on stderr, whole lines, whoever comes and goes."""

import subprocess
import sys

import pytest

from service.cli.log_pipe import LogPipe

WRITER = (
    "import sys; log = open(sys.argv[1], 'a'); [log.write(f'{sys.argv[2]} {n}\\n') or log.flush() for n in range(50)]"
)


def test_lines_of_other_processes_come_out_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with LogPipe() as pipe:
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(pipe.path), name]) for name in "ab"]
        assert [writer.wait(30) for writer in writers] == [0, 0]
        with pipe.path.open("a") as late:
            late.write("späť\n")
    said = capsys.readouterr().err.splitlines()
    assert sorted(said[:-1]) == sorted(f"{name} {number}" for name in "ab" for number in range(50))
    assert said[-1] == "späť"
    assert not pipe.path.exists()


def test_nobody_may_write_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    with LogPipe():
        pass
    assert capsys.readouterr().err == ""
