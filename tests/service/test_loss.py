"""Each process of Ray that nothing replaces is killed: the program ends soon, says why, and leaves nothing behind."""

import os
import signal
import time

import pytest

from service.cli.guard import Exit
from service.cli.processes import needed, of_session
from tests.service.processes import command, descendants
from tests.service.running import Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture
def started(tmp_path):
    service = Service(tmp_path, "service.cli")
    assert service.becomes_ready(), service.stderr
    yield service
    service.process.kill()
    service.process.wait()


def session_of(service):
    [session] = [pid for pid in descendants(service.process.pid) if os.getsid(pid) == pid]
    return session


def gone(session, seconds=5.0):
    deadline = time.monotonic() + seconds
    while left := of_session(session):
        if time.monotonic() > deadline:
            return {process.pid: command(process.pid) for process in left} == {}
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("victim", ["gcs_server", "raylet", "DashboardAgent", "RuntimeEnvAgent"])
def test_the_program_ends_with_ray(started, victim):
    session = session_of(started)
    [process] = [process for process in needed(session) if victim in command(process.pid)[:200]]
    process.kill()
    assert started.process.wait(10) == Exit.LOST
    assert gone(session)
    assert "has ended, so the service ends; Ray's logs: " in started.stderr


def test_ray_ends_with_the_program(started):
    session = session_of(started)
    started.process.kill()
    assert started.process.wait() == -signal.SIGKILL
    assert gone(session)


@pytest.mark.parametrize("stopped", ["ServeController", "ServeReplica:mrp:Generator"])
def test_the_program_ends_in_time_though_a_process_is_stopped(started, stopped):
    session = session_of(started)
    [process] = [process for process in of_session(session) if stopped in command(process.pid)]
    process.suspend()
    started.process.terminate()
    assert started.process.wait(60) == Exit.ENDED
    assert gone(session)
