"""The two processes of the program, with real signals: what each does to the other, and what is left behind."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from service.cli.guard import Exit
from service.cli.processes import of_session, runs

#: the child says its session once its own child runs, and ends as the test wants
PROGRAM = """
import os, signal, subprocess, sys, threading, time
from service.cli.guard import guarded, listen, say

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it

def serve(orders):
    asked = threading.Event()
    listen(orders, lambda: (sys.argv[1] == "says" and say("stopping"), asked.set()))
    subprocess.Popen(["sleep", "1000"])
    print(os.getsid(0), flush=True)
    if sys.argv[1] == "fails":
        return 1
    asked.wait()
    if sys.argv[1] == "hangs":
        time.sleep(1000)
    print("drained", flush=True)
    return 0

sys.exit(guarded(serve, float(sys.argv[2])))
"""


class Program:
    """Runs it, in a process group of its own."""

    def __init__(self, kind: str, patience_s: float = 60, stderr: int = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, kind, str(patience_s)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.session = int(self.process.stdout.readline())

    def ends(self) -> tuple[int, str, str | None]:
        """Its status, and what it said. Nothing of it is left."""
        out, err = self.process.communicate(timeout=120)
        deadline = time.monotonic() + 60
        while of_session(self.session):
            assert time.monotonic() < deadline, of_session(self.session)
            time.sleep(0.01)
        return self.process.returncode, out, err


def test_the_status_is_the_services_and_nothing_is_left() -> None:
    assert Program("fails").ends() == (Exit.REFUSED, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_every_process_drains(number: int) -> None:
    program = Program("drains")
    for process in of_session(program.session):
        process.send_signal(number)
    os.killpg(program.process.pid, number)
    assert program.ends() == (Exit.ENDED, "drained\n", "")


def test_the_service_is_killed_when_its_time_is_over() -> None:
    program = Program("hangs", 0.1)
    program.process.terminate()
    assert program.ends() == (Exit.ENDED, "", "mrp-serve: the service did not end within 0.1 s; it is killed\n")


@pytest.mark.parametrize(("kind", "patience_s", "out"), [("says", 60, "drained\n"), ("hangs", 0.1, "")])
def test_the_service_ends_also_if_nobody_reads_what_the_program_says(kind: str, patience_s: float, out: str) -> None:
    reader, writer = os.pipe()
    program = Program(kind, patience_s, stderr=writer)
    os.close(reader)
    os.close(writer)
    program.process.terminate()
    assert program.ends() == (Exit.ENDED, out, None)


def test_a_second_signal_kills_the_service() -> None:
    program = Program("hangs")
    program.process.terminate()
    while program.process.poll() is None:
        time.sleep(0.6)  # what comes at once counts as the first
        program.process.send_signal(signal.SIGINT)
    assert program.ends() == (Exit.ENDED, "", "mrp-serve: the service is killed\n")


def test_the_service_is_lost() -> None:
    program = Program("drains")
    os.kill(program.session, signal.SIGKILL)
    message = "mrp-serve: the process that runs Ray was ended by SIGKILL, so the service ends\n"
    assert program.ends() == (Exit.LOST, "", message)


def test_a_killed_program_leaves_nothing_behind() -> None:
    program = Program("drains")
    program.process.kill()
    assert program.ends() == (-signal.SIGKILL, "", "")


def test_a_zombie_has_ended() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    process = psutil.Process(ended.pid)
    assert not runs(process)
    assert process not in of_session(os.getsid(0))
    ended.wait()
    assert not runs(process)
