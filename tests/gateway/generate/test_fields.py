"""What each field of POST /generate does, over HTTP in this process.

FIRST is w456 w456 w351 w351 w112 w112 w417 w351 | w159 w159 …, the bar between two blocks.
"""

from typing import Any

import httpx
import pytest

from service.messages.wire import Ending
from tests.gateway.conftest import MakeGenerator
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.generate.helpers import (
    CASES,
    EOS,
    PROMPT,
    UNKNOWN,
    ask,
    body,
    essence,
    frames,
    refused,
    streamed,
    words,
)
from tests.gateway.helpers import over

FIRST = CASES[0]["token_ids"]


class TestPrompts:
    async def test_text_and_ids_are_the_same(self, http: httpx.AsyncClient) -> None:
        answer = await ask(http, body(prompt=words(PROMPT), prompt_token_ids=None))
        assert answer["token_ids"] == FIRST

    @pytest.mark.parametrize("long", [False, True])
    async def test_control_tokens_in_text_are_text(self, http: httpx.AsyncClient, long: bool) -> None:
        """WordLevel knows them as words only, so here their text is the unknown word."""
        written = ["w1", "<|MASK|>", "w2", "<|eos|>", "<|pad|>"] * (150 if long else 1)
        ids = [1, UNKNOWN, 2, UNKNOWN, UNKNOWN] * (150 if long else 1)
        assert (len(" ".join(written)) > 4096) == long
        answer = await ask(http, body(prompt=" ".join(written), prompt_token_ids=None, seed=1))
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert essence(answer) == essence(await ask(http, body(prompt_token_ids=ids, seed=1)))


class TestModes:
    async def test_the_default_is_speculative_and_leaves_its_drafts_to_the_engine(
        self, http: httpx.AsyncClient
    ) -> None:
        (model,) = (await http.get("/v1/models")).json()["data"]
        assert model["default_mode"] == "speculative"
        assert model["defaults"]["speculative"] == {"mrp_steps": "auto"}
        answer = await ask(http, body(mode=None, seed=3))
        assert answer["mode"] == "speculative"
        assert answer["token_ids"] == FIRST
        assert answer["stats"]["mrp_steps"] in (0, 1, 2, 4)
        explicit = await ask(http, body(mode="speculative", mrp_steps="auto", max_drafts=2, seed=3))
        assert explicit["token_ids"] == FIRST
        fixed = await ask(http, body(mode="speculative", mrp_steps=3, seed=3))
        assert fixed["stats"]["mrp_steps"] == 3
        assert (await ask(http, body(mode="static")))["stats"]["mrp_steps"] is None

    async def test_the_operators_default_mode(self, make_generator: MakeGenerator) -> None:
        async with over(make_generator(default_mode="dynamic")) as http:
            answer = await ask(http, body(mode=None, threshold=0.5, seed=3))
            assert answer["mode"] == "dynamic"
            assert essence(answer) == essence(await ask(http, body(mode="dynamic", threshold=0.5, seed=3)))

    async def test_a_knob_without_mode_is_one_of_the_default_mode(self, http: httpx.AsyncClient) -> None:
        answer = await ask(http, body(mode=None, mrp_steps=4, seed=3))
        assert essence(answer) == essence(await ask(http, body(mode="speculative", mrp_steps=4, seed=3)))

    async def test_the_served_model_may_be_named(self, http: httpx.AsyncClient) -> None:
        named = await ask(http, body(model="golden", seed=3))
        assert named["model"] == "golden"
        assert essence(named) == essence(await ask(http, body(seed=3) | {"model": None}))

    async def test_another_model_is_404_naming_the_one_there_is(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(model="gpt-4"), 404)
        assert (detail["code"], detail["param"]) == ("unknown_model", "model")
        assert detail["message"] == "model is 'gpt-4', served is 'golden'"
        assert (await refused(http, body(model=4)))["param"] == "model"

    async def test_null_is_the_default(self, http: httpx.AsyncClient) -> None:
        nulls = dict.fromkeys(("mode", "mrp_steps", "seed", "stop", "timeout_s", "prompt", "messages"))
        assert (await ask(http, body() | nulls))["mode"] == "speculative"

    @pytest.mark.parametrize(
        "knobs",
        [
            {"mode": "static", "tokens_per_step": 8},
            {"mode": "dynamic", "threshold": 1},
            {"mode": "direct", "mrp_steps": 8},
            {"mode": "speculative", "mrp_steps": 8},
            {"mode": "remask", "threshold": 1e-300},
        ],
    )
    async def test_the_limits_of_a_knob_are_allowed(self, http: httpx.AsyncClient, knobs: dict[str, Any]) -> None:
        answer = await ask(http, body(**knobs, ignore_eos=True))
        assert len(answer["token_ids"]) == 16


class TestSampling:
    async def test_a_seed_is_returned_and_repeats_the_sample(self, http: httpx.AsyncClient) -> None:
        request = body(temperature=1.5, ignore_eos=True)
        answers = [await ask(http, request) for _ in range(3)]
        assert len({answer["seed"] for answer in answers}) == 3
        assert len({tuple(answer["token_ids"]) for answer in answers}) == 3
        for answer in answers:
            again = await ask(http, request | {"seed": answer["seed"]})
            assert again["seed"] == answer["seed"]
            assert again["token_ids"] == answer["token_ids"]

    async def test_speculative_is_static_sampled_too(self, http: httpx.AsyncClient) -> None:
        request = body(temperature=0.8, top_p=0.95, top_k=50, seed=2**63 - 1)
        static = await ask(http, request)
        speculative = await ask(http, request | {"mode": "speculative"})
        assert static["token_ids"] == speculative["token_ids"] != FIRST

    @pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 1e-300}])
    async def test_the_best_alone_needs_no_seed(self, http: httpx.AsyncClient, filters: dict[str, Any]) -> None:
        answers = [await ask(http, body(temperature=2, seed=seed, **filters)) for seed in (1, 2)]
        assert answers[0]["token_ids"] == answers[1]["token_ids"]

    @pytest.mark.parametrize(
        "mode", [{"mode": "static"}, {"mode": "speculative"}, {"mode": "speculative", "mrp_steps": 3}]
    )
    async def test_penalties_bias_and_words(self, http: httpx.AsyncClient, mode: dict[str, Any]) -> None:
        """FIRST has some tokens twice, and each field takes them out. The neutral values change nothing."""
        neutral = {"min_p": 0, "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
        answer = await ask(http, body(**mode, **neutral, min_tokens=0, bad_words=[]))
        assert answer["token_ids"] == FIRST
        for fields in (
            {"repetition_penalty": 100},
            {"frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 9},
        ):
            tokens = (await ask(http, body(**mode, **fields)))["token_ids"]
            assert len(set(tokens)) == len(tokens) == 16
        biased = (await ask(http, body(**mode, logit_bias={"456": -100, "7": 100.0})))["token_ids"]
        assert set(biased) == {7}
        words = (await ask(http, body(**mode, bad_words=["w456", "w351 w351"])))["token_ids"]
        assert 456 not in words
        assert [351, 351] not in [words[start : start + 2] for start in range(15)]
        assert {456, 351} <= set(FIRST)

    async def test_only_the_likeliest_is_left_by_min_p_one(self, http: httpx.AsyncClient) -> None:
        answers = [await ask(http, body(temperature=1.5, seed=seed, min_p=1.0)) for seed in range(3)]
        assert len({tuple(answer["token_ids"]) for answer in answers}) == 1

    @pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-38, 1e-45, 1e-300, 5e-324, 100])
    async def test_any_temperature_is_answered(self, http: httpx.AsyncClient, temperature: float) -> None:
        request = body(temperature=temperature, mode="remask", return_trace=True, ignore_eos=True, top_k=2**70)
        assert len((await ask(http, request))["token_ids"]) == 16


class TestEnds:
    @pytest.mark.parametrize(
        ("stop", "number", "left"),
        [
            ("w351", 3, "w456 w456 "),
            ("w417 w351 w159", 9, "w456 w456 w351 w351 w112 w112 "),
            ("51 w159 w15", 10, "w456 w456 w351 w351 w112 w112 w417 w3"),
            ("1 w", 4, "w456 w456 w35"),
            (["nothing", "w112", "w351 w351"], 4, "w456 w456 "),
            (["w351 w159", "w351 w112 w112"], 6, "w456 w456 w351 "),
            ("w225", 15, words(FIRST[:-1]) + " "),
            ("w456", 1, ""),
        ],
    )
    async def test_stop_texts(self, http: httpx.AsyncClient, stop: Any, number: int, left: str) -> None:
        answer = await ask(http, body(stop=stop, seed=1))
        assert answer["text"] == left
        assert answer["finish_reason"] == "stop"
        assert answer["token_ids"] == FIRST[:number]
        assert answer["usage"]["completion_tokens"] == number
        again = await streamed(http, body(stop=stop, seed=1))
        assert essence(again) == essence(answer)

    async def test_text_that_may_begin_a_stop_text_is_held_back(self, http: httpx.AsyncClient) -> None:
        (_, first), (_, second), (last, _) = await frames(http, body(stop="w351 w159 no"))
        assert last == "done"
        assert first["text"] == words(FIRST[:7]) + " "
        assert second["text"].startswith("w351 w159 w159")

    async def test_a_stop_text_that_never_comes(self, http: httpx.AsyncClient) -> None:
        answer = await ask(http, body(stop=["w225 w", "W456"]))
        assert answer["text"] == words(FIRST)

    async def test_end_tokens(self, http: httpx.AsyncClient) -> None:
        assert (await ask(http, body()))["finish_reason"] == "stop"
        on = await ask(http, body(ignore_eos=True))
        assert on["token_ids"] == [*FIRST, EOS]
        assert on["finish_reason"] == "length"
        assert on["text"] == words(FIRST)

    @pytest.mark.parametrize("ignore_eos", [False, True])
    async def test_stop_tokens(self, http: httpx.AsyncClient, ignore_eos: bool) -> None:
        answer = await ask(http, body(stop_token_ids=[351, 7], ignore_eos=ignore_eos))
        assert answer["token_ids"] == FIRST[:2]
        assert answer["finish_reason"] == "stop"

    async def test_no_end_before_min_tokens(self, http: httpx.AsyncClient) -> None:
        stops = {"stop_token_ids": [FIRST[2]], "stop": [f"w{FIRST[4]}"]}
        assert len((await ask(http, body(**stops)))["token_ids"]) == 2
        answer = await ask(http, body(**stops, min_tokens=12))
        assert FIRST[2] not in answer["token_ids"][:12]
        assert len(answer["token_ids"]) >= 12
        text = await ask(http, body(stop=[f"w{FIRST[0]}"]))
        assert (text["text"], text["finish_reason"]) == ("", "stop")
        later = await ask(http, body(stop=[f"w{FIRST[0]}"], min_tokens=2))
        assert later["token_ids"] == FIRST

    async def test_stop_tokens_do_not_replace_eos(self, http: httpx.AsyncClient) -> None:
        assert (await ask(http, body(stop_token_ids=[7])))["token_ids"] == FIRST

    async def test_an_end_before_the_first_token(self, http: httpx.AsyncClient) -> None:
        answer = await ask(http, body(stop_token_ids=[456], seed=1))
        assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("", [], "stop")
        assert essence(await streamed(http, body(stop_token_ids=[456], seed=1))) == essence(answer)


async def test_a_replica_gets_the_fields_and_their_defaults() -> None:
    backend = Scripted(Ending("length", 1, 1, STATS))
    async with over(backend, request_timeout_s=30) as http:
        await ask(http, {"prompt": "a"})
        await ask(
            http, {"messages": [{"role": "user", "content": "a"}], "timeout_s": 3, "stop": "x", "mode": "dynamic"}
        )
    plain, full = backend.requests
    assert (plain.text, plain.token_ids, plain.messages) == ("a", None, None)
    assert (plain.mode.name, plain.max_new_tokens, plain.timeout_s, plain.stop) == ("static", 256, 30, ())
    assert (full.text, full.messages) == (None, ({"role": "user", "content": "a"},))
    assert (full.mode.name, full.timeout_s, full.stop) == ("dynamic", 3, ("x",))
    assert full.mode.threshold == CARD.defaults["dynamic"]["threshold"]  # type: ignore[union-attr]
