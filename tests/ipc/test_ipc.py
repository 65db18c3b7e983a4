"""When a process counts as hung, by a clock that the test sets; the environment of child processes."""

import subprocess

import pytest

from service.ipc.connections import BEAT_S, HUNG_S, LOOK_S, Silence, start_child
from tests.clock import Clock


def looks(silence: Silence, clock: Clock, seconds: float) -> float:
    """The silence after looking at every turn for so long."""
    count = 0.0
    for _ in range(round(seconds / LOOK_S)):
        clock.now += LOOK_S
        count = silence.look()
    return count


def test_a_process_that_says_nothing_is_hung_within_ten_seconds(clock: Clock) -> None:
    silence = Silence(clock)
    assert looks(silence, clock, HUNG_S) == HUNG_S < 10 - 2 * LOOK_S
    assert looks(silence, clock, LOOK_S) > HUNG_S


def test_a_stop_of_five_seconds_is_a_pause(clock: Clock) -> None:
    silence = Silence(clock)
    looks(silence, clock, BEAT_S)  # stopped just before it would have said something
    assert looks(silence, clock, 5.0) < HUNG_S - 1.0
    silence.end()
    assert looks(silence, clock, 5.0) == 5.0


def test_a_listener_that_stood_still_itself_blames_nobody(clock: Clock) -> None:
    silence = Silence(clock)
    clock.now += 3600.0
    assert silence.look() <= 2 * LOOK_S


def test_torch_takes_no_kernels_of_other_packages_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled when they are first used, and round in another way."""
    environment: dict[str, str] = {}
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: environment.update(env))
    _, end = start_child("a.module")
    end.close()
    assert environment["TORCH_DISABLE_NATIVE_JIT"] == "1"
