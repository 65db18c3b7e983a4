"""The simulated engine: plans give the same answers, the host's work is hidden by steps ahead, and clocks repeat."""

import json
from dataclasses import replace

import pytest

from benchmarks.simulated.network import Acceptance
from benchmarks.simulated.play import Game, Part, Played, compare
from benchmarks.simulated.random_worlds import random_world
from benchmarks.simulated.runner import DeviceTimes, HostTimes
from benchmarks.simulated.worlds import WORLDS, Load, Traffic, World
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static

#: forwards cost the same, whatever their rows
DEVICE = DeviceTimes(((1, 10.0), (512, 10.0)), ((1, 1.0), (512, 1.0)))
NO_HOST = HostTimes(launch=0, launch_row=0, read=0, read_row=0, step=0, request=0, state=0, search=0, draft=0)
SMALL = World("small", DEVICE, loads=(Load(3, 6), Load(1, 1)), traffic=Traffic(new_tokens=(12, 30)))
AUTO = Speculative("auto")
#: modes of which some begin steps ahead
MODES = [
    *(Static(), Static(2), Dynamic(0.7), Entropy(0.3), Sequential(1, 0.3), Remask(0.6)),
    *(Direct(2), Direct(2, 0.4), AUTO, Speculative("auto", threshold=0.7), Speculative(2, 4), Speculative(3)),
]


@pytest.fixture(autouse=True)
def any_plan() -> None:
    """The clock decides which plan runs."""


def seconds(played: Played) -> float:
    return sum(part.seconds for part in played.parts)


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_answers_of_drafting_plans_are_those_of_static(block_size: int) -> None:
    game = Game(replace(SMALL, block_size=block_size))
    static = game.play(Static())
    for mode in (AUTO, Speculative(0, 1), Speculative(1, 3), Speculative(2)):
        played = game.play(mode)
        assert len(played.answers.keys() & static.answers.keys()) >= 6
        assert played.has_answers_of(static)
        assert played.forwards.backbone < static.forwards.backbone
    assert any(static.answers.values())


def test_answers_do_not_depend_on_steps_ahead_and_on_replays() -> None:
    ahead, single, turns = (
        Game(replace(SMALL, device=device))
        for device in (DEVICE, replace(DEVICE, replays=False), replace(DEVICE, graphs=False, replays=False))
    )
    for mode in MODES:
        answers = turns.play(mode)
        assert ahead.play(mode).has_answers_of(answers), mode
        assert single.play(mode).has_answers_of(answers), mode


@pytest.mark.parametrize("name", ["shared prefixes", "long prompts", "half direct", "half static", "API keys"])
def test_answers_are_equal_in_worlds_of_other_requests(name: str) -> None:
    world = next(world for world in WORLDS if name in world.name)
    [comparison] = compare(replace(world, loads=(Load(3, 8),), fixed=()), [AUTO])
    assert comparison.same_answers
    assert comparison.times_best == comparison.times_static > 0


def test_other_answers_are_noticed() -> None:
    game = Game(replace(SMALL, acceptance=Acceptance(error=0.9)))
    assert not game.play(Direct(4)).has_answers_of(game.play(Static()))


def test_steps_ahead_hide_the_host() -> None:
    """A step in turns takes the host's time more. Few steps of `static` are in turns: the first one, and after ends."""
    busy, idle = Game(replace(SMALL, loads=(Load(3, 12),))), Game(replace(SMALL, loads=(Load(3, 12),), host=NO_HOST))
    least = 1e-3 * (HostTimes().launch + HostTimes().read + HostTimes().step)
    static, without = busy.play(Static()), idle.play(Static())
    assert static.forwards == without.forwards
    assert 10 * static.forwards.in_turns < static.forwards.backbone
    assert 0 < seconds(static) - seconds(without) < 2 * least * static.forwards.in_turns
    drafted, without = busy.play(Speculative(0, 1)), idle.play(Speculative(0, 1))
    assert drafted.forwards.in_turns == drafted.forwards.backbone
    assert (
        least * drafted.forwards.backbone < seconds(drafted) - seconds(without) < 2 * least * drafted.forwards.backbone
    )


def test_waits_are_paid_by_steps_in_turns_alone() -> None:
    waiting, usual = Game(replace(SMALL, host=HostTimes(wait=5.0))), Game(SMALL)
    for mode in (Static(), Speculative(0, 2)):
        slow, fast = waiting.play(mode), usual.play(mode)
        assert seconds(slow) - seconds(fast) == pytest.approx(5e-3 * slow.forwards.in_turns, abs=2e-3)


@pytest.mark.parametrize(("plans", "steps"), [([0, 0, 1, 3, 1, 0, 1, 1], 2), ([2, 2, 2], 0)])
def test_a_load_has_its_plan_once_the_plan_of_its_second_half_begins(plans: list[int], steps: int) -> None:
    assert Part(1, 1.0, plans).steps_to_plan == steps


def test_equal_seeds_give_equal_clocks() -> None:
    noisy = replace(SMALL, device=replace(DEVICE, noise=0.2))
    plays = [Game(noisy, seed).play(AUTO) for seed in (1, 1, 2)]
    assert plays[0].parts == plays[1].parts
    assert seconds(plays[0]) != seconds(plays[2])
    assert random_world(5) == random_world(5) != random_world(6)


def test_simulated_compares_plans_with_static(run, capsys, tmp_path) -> None:
    words = ("--plan", "direct mrp_steps=1", "--plan", "speculative mrp_steps=auto", "--out", tmp_path / "rows.json")
    assert run("simulated.__main__", "CPU, 1 user", *words) == 0
    assert "times static: " in capsys.readouterr().out
    direct, auto = json.loads((tmp_path / "rows.json").read_text())
    assert (direct["world"], direct["plan"]) == ("CPU, 1 user", "direct mrp_steps=1")
    assert (direct["same_answers"], auto["same_answers"]) == (False, True)
    assert set(auto["fixed"]) == {"0, 1", "0, 4", "2, 6"}
    assert [len(auto[name]) for name in ("loads", "times_static_by_load", "steps_to_plan_by_load")] == [1, 1, 1]
    assert run("simulated.__main__", "Mars") == 1
    assert "benchmarks: world is 'Mars', allowed are 'random N' and parts of '4B, 1 user'" in capsys.readouterr().err


def test_a_preset_is_as_fast_as_its_best_plan(run, tmp_path) -> None:
    """The time of its trials is in the number, so the run is not short."""
    words = ("--preset", "fast", "--longer", 2, "--out", tmp_path / "rows.json")
    assert run("simulated.__main__", "8B, 8 users", *words) == 0
    [row] = [row for row in json.loads((tmp_path / "rows.json").read_text()) if row["world"] == "8B, 8 users"]
    assert row["plan"] == "fast"
    assert len(row["fixed"]) > 2
    assert row["times_best"] > 0.9


def test_rules_of_memory_run_the_same_answers_at_other_times(run, capsys, tmp_path) -> None:
    """The caches of 8,192 tokens have pages for one answer without a limit."""
    words = ("--tokens", "8192", "--requests", "24", "--answer", "60", "--out", tmp_path / "rows.json")
    assert run("simulated.memory", *words) == 0
    assert "tokens_s" in capsys.readouterr().out
    reserve, free, peak = json.loads((tmp_path / "rows.json").read_text())
    assert [row["rule"] for row in (reserve, free, peak)] == ["reserve", "free", "peak"]
    assert (reserve["most"], reserve["preemptions"]) == (1, 0)
    assert free["most"] >= peak["most"] > 1
    assert free["tokens_s"] > reserve["tokens_s"] < peak["tokens_s"]
