"""When requests start: levels, Poisson arrivals, recorded ones."""

import itertools
import random
import statistics

import pytest

from loadtest.generator.arrivals import Profile, poisson, trace


def arrivals(levels, seed=1, share=1.0):
    return list(poisson(Profile.parse(levels), share, random.Random(seed)))


def test_gaps_are_exponential_with_the_rates_mean():
    times = [arrival.at for arrival in arrivals("400:20")]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) == pytest.approx(8000, rel=0.05)
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.07)
    assert times == sorted(times)


def test_a_share_of_the_rate_is_that_share_of_the_arrivals():
    assert len(arrivals("400:20", share=0.25)) == pytest.approx(2000, rel=0.1)


def test_rates_follow_their_stages_and_ramps():
    found = arrivals("100:10,100:0,100:10-30")
    counts = [sum(arrival.stage == stage for arrival in found) for stage in range(3)]
    assert counts[0] == pytest.approx(1000, rel=0.15)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(2000, rel=0.15)
    rising = [arrival.at for arrival in found if arrival.stage == 2]
    assert sum(at > 250 for at in rising) > 1.2 * sum(at < 250 for at in rising)


def test_the_same_seed_gives_the_same_arrivals():
    assert arrivals("10:5", seed=3) == arrivals("10:5", seed=3) != arrivals("10:5", seed=4)


def test_levels_over_time():
    profile = Profile.parse("10:4, 10:4-8,5:1")
    assert profile.seconds == 25
    assert [profile.level(at) for at in (0, 9.9, 15, 24.9, 25)] == [4, 4, 6, 1, 0]
    assert [profile.stage(at) for at in (0, 10, 24.9, 25)] == [0, 1, 2, None]
    assert str(profile.scaled(2)) == "10:8,10:8-16,5:2"
    assert Profile.parse(str(profile)) == profile


@pytest.mark.parametrize("text", ["", "10", "x:1", "0:1", "-1:3", "10:-1", "10:1,"])
def test_wrong_levels_say_what_is_allowed(text):
    with pytest.raises(ValueError, match="allowed: SECONDS:LEVEL"):
        Profile.parse(text)


def test_recorded_arrivals_count_from_the_first_and_are_shared_out(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text('100.5\n{"at": 101}\n\n103\n102\n')
    assert [arrival.at for arrival in trace(file)] == [0.0, 0.5, 1.5, 2.5]
    assert [arrival.at for arrival in trace(file, 1, 2)] == [0.5, 2.5]
    file.write_text("")
    with pytest.raises(ValueError, match="holds no arrivals"):
        trace(file)
