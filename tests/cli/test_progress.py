"""Long commands show their progress from the first part on: a bar on a terminal, else lines."""

import re

import pytest

from service.cli.output import Counter


def counts(screen):
    """`(done, of)` of the lines of progress."""
    return [(int(done), int(of)) for done, of in re.findall(r"^(\d+)/(\d+)  \S", screen, re.MULTILINE)]


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")


def test_a_short_job_has_a_line_for_every_part(capsys):
    with Counter(3) as counter:
        for part in ("one", "two", "three [bold]"):
            counter.next(part)
    assert capsys.readouterr().err == "1/3  one\n2/3  two\n3/3  three [bold]\n"


def test_a_long_job_has_twenty_lines(capsys):
    with Counter(1000, done=500) as counter:
        for _ in range(250):
            counter.next("parts", 2)
    assert counts(capsys.readouterr().err) == [(done, 1000) for done in range(550, 1001, 50)]


def test_a_terminal_has_a_bar_with_the_count_and_the_time_left(terminal, capsys):
    with Counter(3) as counter:
        counter.reach(2, "two")
    screen = capsys.readouterr().err
    assert "2/3" in screen
    assert re.search(r"\d:\d\d:\d\d|-:--:--", screen)
    assert "two" in screen
    assert not counts(screen)
