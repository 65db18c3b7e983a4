"""The requests: the same for the same seed, by the given distributions."""

import collections
import json
import random
import statistics

import pytest

from loadtest.generator.workload import (
    Lengths,
    Workload,
    as_messages,
    as_prompt,
    for_openai,
    heldout_prompts,
    plans,
    read_prompts,
)

PROMPTS = tuple({"prompt": f"p{number}"} for number in range(50))


def workload(modes="static:1,speculative@mrp_steps=2:3", lengths="uniform:16-64", **changes):
    return Workload(PROMPTS, plans(modes), Lengths.parse(lengths), **changes)


def test_a_request_is_the_same_whatever_else_was_asked():
    asked = [workload().request(number) for number in range(20)]
    assert [workload().request(number) for number in reversed(range(20))] == asked[::-1]
    assert workload(seed=18).request(3) != asked[3]
    assert workload().request(3, "other source") != asked[3]


def test_modes_come_by_their_weights_with_their_knobs():
    asked = [workload().request(number) for number in range(2000)]
    counts = collections.Counter(request.label for request in asked)
    assert counts["speculative@mrp_steps=2"] == pytest.approx(1500, rel=0.1)
    assert {(r.body["mode"], r.body.get("mrp_steps")) for r in asked} == {("static", None), ("speculative", 2)}


def test_the_default_mode_asks_for_none():
    assert "mode" not in workload("default").request(0).body


def test_lengths_by_distribution():
    draw = random.Random(1)
    assert {Lengths.parse("fixed:9").draw(draw) for _ in range(9)} == {9}
    uniform = [Lengths.parse("uniform:16-64").draw(draw) for _ in range(3000)]
    assert (min(uniform), max(uniform)) == (16, 64)
    assert statistics.mean(uniform) == pytest.approx(40, rel=0.05)
    logs = [Lengths.parse("lognormal:48-0.5").draw(draw) for _ in range(3000)]
    assert statistics.median(logs) == pytest.approx(48, rel=0.08)
    assert max(logs) > 96


def test_exact_lengths_do_not_stop_early():
    assert workload(exact=True).request(0).body["ignore_eos"]
    assert "ignore_eos" not in workload().request(0).body


@pytest.mark.parametrize("text", ["", "64", "fixed:", "fixed:0", "normal:3", "uniform:a-b"])
def test_wrong_lengths_say_what_is_allowed(text):
    with pytest.raises(ValueError, match="allowed: fixed:N"):
        Lengths.parse(text)


@pytest.mark.parametrize("text", ["", "static:x", "static:0", "remask@threshold", "remask@threshold=1x", "@a=1"])
def test_wrong_modes_say_what_is_allowed(text):
    with pytest.raises(ValueError, match="allowed: MODE"):
        plans(text)


def test_prompts_of_a_file_and_of_the_demo(tmp_path):
    file = tmp_path / "prompts.jsonl"
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    file.write_text("\n".join(map(json.dumps, [chat | {"id": 3}, {"prompt": "ho"}])))
    assert read_prompts(file) == (chat, {"prompt": "ho"})
    file.write_text('{"text": "hi"}')
    with pytest.raises(ValueError, match="allowed is one: messages or prompt"):
        read_prompts(file)
    file.write_text("")
    with pytest.raises(ValueError, match="holds no prompts"):
        read_prompts(file)
    assert len(heldout_prompts()) == 1200


def test_bodies_for_openais_routes():
    body = workload(lengths="fixed:9").request(0).body
    turned = for_openai(body, "demo")
    assert (turned["model"], turned["max_tokens"]) == ("demo", 9)
    assert "max_new_tokens" not in turned
    chat = as_messages({"prompt": "hi"})
    assert chat == {"messages": [{"role": "user", "content": "hi"}]}
    assert as_prompt(chat) == {"prompt": "hi"}


def test_a_quality_stands_for_a_mode():
    asked = [workload("fast:1,static:1").request(number) for number in range(50)]
    assert {(r.body.get("mode"), r.body.get("quality")) for r in asked} == {("static", None), (None, "fast")}
