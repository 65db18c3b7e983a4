"""When a process counts as hung, by a clock that the test sets; the environment of child processes."""

import subprocess

import pytest

from service.ipc.connections import HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, POLL_S, HeartbeatMonitor, start_child
from tests.clock import Clock


def silence_after(monitor: HeartbeatMonitor, clock: Clock, seconds: float) -> float:
    silence = 0.0
    for _ in range(round(seconds / POLL_S)):
        clock.now += POLL_S
        silence = monitor.poll()
    return silence


def test_a_process_that_sends_nothing_is_hung_within_ten_seconds(clock: Clock) -> None:
    monitor = HeartbeatMonitor(clock)
    assert silence_after(monitor, clock, HEARTBEAT_TIMEOUT_S) == HEARTBEAT_TIMEOUT_S < 10 - 2 * POLL_S
    assert silence_after(monitor, clock, POLL_S) > HEARTBEAT_TIMEOUT_S


def test_a_process_stopped_for_five_seconds_is_not_hung(clock: Clock) -> None:
    monitor = HeartbeatMonitor(clock)
    silence_after(monitor, clock, HEARTBEAT_S)  # stopped just before its next heartbeat
    assert silence_after(monitor, clock, 5.0) < HEARTBEAT_TIMEOUT_S - 1.0
    monitor.observe()
    assert silence_after(monitor, clock, 5.0) == 5.0


def test_a_suspended_monitor_counts_little_of_its_own_gap(clock: Clock) -> None:
    monitor = HeartbeatMonitor(clock)
    clock.now += 3600.0
    assert monitor.poll() <= 2 * POLL_S


def test_torch_takes_no_kernels_of_other_packages_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled when they are first used, and round in another way."""
    environment: dict[str, str] = {}
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: environment.update(env))
    _, end = start_child("a.module")
    end.close()
    assert environment["TORCH_DISABLE_NATIVE_JIT"] == "1"
