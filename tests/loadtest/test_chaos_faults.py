"""How `loadtest.chaos.faults` tells outcomes apart, and which processes it knows."""

from __future__ import annotations

import subprocess
import time

import pytest

from loadtest.chaos.faults import TABLE, Tally, parse
from loadtest.chaos.program import Family
from loadtest.generator.protocol import BROKEN_OFF
from loadtest.harness import Outcome

QUIET = Outcome(200, [1, 2], "a", finish="length")
BODY = {"stream": True}


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Outcome(200, [1, 2], "a", finish="length", gaps=[0.1, 0.2], total_s=0.3), "right"),
        (Outcome(200, [1, 3], "a", finish="length"), "different"),
        (Outcome(0, error="ConnectError: refused"), "refused"),
        (Outcome(503, error="ingress_lost: try again"), "clear"),
        (Outcome(200, [1], error="replica_lost: in the stream"), "clear"),
        (Outcome(500, error="Internal Server Error"), "unclear"),
        (Outcome(200, [1], error=BROKEN_OFF), "unclear"),
        (Outcome(0, error="ReadError: reset"), "unclear"),
        (Outcome(0, error="no answer in 30 s"), "unclear"),
    ],
)
def test_outcomes(outcome: Outcome, counted: str) -> None:
    tally = Tally()
    tally.count(BODY, QUIET, outcome)
    amounts = {
        "right": tally.right,
        "different": tally.different,
        "refused": tally.refused,
        "clear": tally.clear.total(),
        "unclear": tally.unclear.total(),
    }
    assert [name for name, amount in amounts.items() if amount] == [counted]
    assert sum(amounts.values()) == 1


def test_a_pause_is_what_nobody_got_anything_in() -> None:
    tally = Tally(arrivals=[10.0, 10.5, 14.0, 11.0])
    assert tally.longest_pause_s == 3.0


def test_every_row_of_the_table_is_a_fault() -> None:
    for words in TABLE:
        arguments = parse(words.split())
        assert [arguments.kill, arguments.stop, arguments.signal].count(None) == 2


def test_a_process_stays_known_when_its_parent_has_ended() -> None:
    program = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; read line"], stdin=-1, stdout=-1, text=True)
    assert program.stdin is not None
    assert program.stdout is not None
    family = Family()
    family.joins(program.pid)
    child = int(program.stdout.readline())
    assert family.alive == sorted([program.pid, child])
    program.stdin.close()
    program.wait()
    program.stdout.close()
    assert family.alive == [child]
    family.end()
    while family.alive:
        time.sleep(0.01)
