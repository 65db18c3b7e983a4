"""Which requests come when: a function of seed and number, by the distributions of the options."""

import collections
import itertools
import random
import statistics

import pytest

from loadtest.generator.arrivals import Profile, poisson
from loadtest.generator.workload import Lengths, Workload, for_openai, plans

PROMPTS = tuple({"prompt": f"p{number}"} for number in range(50))


def workload(modes="static:1,speculative@mrp_steps=2:3", lengths="uniform:16-64", **changes):
    return Workload(PROMPTS, plans(modes), Lengths.parse(lengths), **changes)


def arrivals(levels, seed=1, share=1.0):
    return list(poisson(Profile.parse(levels), share, random.Random(seed)))


# --- arrivals ----------------------------------------------------------------------------------------


def test_gaps_are_exponential_with_the_rates_mean():
    times = arrivals("400:20")
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) == pytest.approx(8000, rel=0.05)
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.07)
    assert len(arrivals("400:20", share=0.25)) == pytest.approx(2000, rel=0.1)
    assert arrivals("400:0") == []


def test_levels_follow_each_other_with_ramps_between():
    profile = Profile.parse("10:2,20:0-40,5:1")
    assert [profile.level(at) for at in (0.0, 9.9, 10.0, 20.0, 30.0, 34.9)] == [
        *((0, 2), (0, 2), (1, 0), (1, 20), (2, 1), (2, 1)),
    ]
    times = arrivals("100:2,100:20")
    assert sum(time < 100 for time in times) == pytest.approx(200, rel=0.2)
    assert sum(time >= 100 for time in times) == pytest.approx(2000, rel=0.1)


# --- requests ----------------------------------------------------------------------------------------


def test_a_request_depends_on_seed_source_and_number_alone():
    requests = [workload().request(number) for number in range(20)]
    assert [workload().request(number) for number in reversed(range(20))] == requests[::-1]
    assert workload(seed=18).request(3) != requests[3]
    assert workload().request(3, "other source") != requests[3]


def test_modes_and_qualities_come_by_their_weights_with_their_knobs():
    requests = [workload("static:1,speculative@mrp_steps=2:3,fast:1").request(number) for number in range(2500)]
    counts = collections.Counter(request.label for request in requests)
    assert counts["speculative@mrp_steps=2"] == pytest.approx(1500, rel=0.1)
    fields = {tuple(request.body.get(name) for name in ("mode", "quality", "mrp_steps")) for request in requests}
    assert fields == {("static", None, None), ("speculative", None, 2), (None, "fast", None)}
    assert "mode" not in workload("default").request(0).body


def test_lengths_by_distribution():
    draw = random.Random(1)
    assert {Lengths.parse("fixed:9").draw(draw) for _ in range(9)} == {9}
    uniform = [Lengths.parse("uniform:16-64").draw(draw) for _ in range(3000)]
    assert (min(uniform), max(uniform)) == (16, 64)
    assert statistics.mean(uniform) == pytest.approx(40, rel=0.05)
    assert statistics.median([Lengths.parse("lognormal:48-0.5").draw(draw) for _ in range(3000)]) == pytest.approx(
        48, rel=0.08
    )
    assert workload(exact=True).request(0).body["ignore_eos"]


@pytest.mark.parametrize("content", [{"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}])
def test_openais_routes_get_the_same_request(content):
    body = content | {"max_new_tokens": 5, "seed": 1}
    fields = {"model": "m", "max_tokens": 5, "seed": 1}
    assert for_openai(body, "m", chat=True) == fields | {"messages": [{"role": "user", "content": "a"}]}
    assert for_openai(body, "m", chat=False) == fields | {"prompt": "a"}


@pytest.mark.parametrize(
    ("read_text", "text", "message"),
    [
        *((Lengths.parse, text, "allowed: fixed:N") for text in ("", "64", "fixed:0", "normal:3", "uniform:a-b")),
        *((plans, text, "allowed: MODE") for text in ("", "static:x", "static:0", "remask@threshold=1x", "@a=1")),
        *((Profile.parse, text, "allowed: SECONDS:LEVEL") for text in ("", "10", "x:1", "0:1", "10:-1", "10:1,")),
    ],
)
def test_wrong_options_say_what_is_allowed(read_text, text, message):
    with pytest.raises(ValueError, match=message):
        read_text(text)
