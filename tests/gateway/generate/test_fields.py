"""What each field of POST /generate does, over HTTP in this process.

FIRST is w456 w456 w351 w351 w112 w112 w417 w351 | w159 w159 …, the bar between two blocks.
"""

import pytest

from service.messages.wire import Ending
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.generate.helpers import CASES, EOS, PROMPT, UNKNOWN, ask, body, essence, streamed, words
from tests.gateway.helpers import over

FIRST = CASES[0]["token_ids"]


class TestPrompts:
    async def test_text_and_ids_are_the_same(self, http):
        answer = await ask(http, body(prompt=words(PROMPT), prompt_token_ids=None))
        assert answer["token_ids"] == FIRST

    @pytest.mark.parametrize("long", [False, True])
    async def test_control_tokens_in_text_are_text(self, http, long):
        """WordLevel knows them as words only, so here their text is the unknown word."""
        written = ["w1", "<|MASK|>", "w2", "<|eos|>", "<|pad|>"] * (150 if long else 1)
        ids = [1, UNKNOWN, 2, UNKNOWN, UNKNOWN] * (150 if long else 1)
        assert (len(" ".join(written)) > 4096) == long
        answer = await ask(http, body(prompt=" ".join(written), prompt_token_ids=None, seed=1))
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert essence(answer) == essence(await ask(http, body(prompt_token_ids=ids, seed=1)))


class TestLengths:
    async def test_openais_name_of_the_limit(self, http):
        answer = await ask(http, body(max_new_tokens=None, max_tokens=4, seed=1))
        assert answer["token_ids"] == FIRST[:4]
        assert essence(answer) == essence(await ask(http, body(max_new_tokens=4, max_tokens=4, seed=1)))


class TestModes:
    async def test_the_default_is_speculative_and_leaves_its_drafts_to_the_engine(self, http):
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

    async def test_the_operators_default_mode(self, make_generator):
        async with over(make_generator(default_mode="dynamic")) as http:
            answer = await ask(http, body(mode=None, threshold=0.5, seed=3))
            assert answer["mode"] == "dynamic"
            assert essence(answer) == essence(await ask(http, body(mode="dynamic", threshold=0.5, seed=3)))


class TestSampling:
    async def test_a_seed_is_returned_and_repeats_the_sample(self, http):
        request = body(temperature=1.5, ignore_eos=True)
        answers = [await ask(http, request) for _ in range(3)]
        assert len({answer["seed"] for answer in answers}) == 3
        assert len({tuple(answer["token_ids"]) for answer in answers}) == 3
        for answer in answers:
            again = await ask(http, request | {"seed": answer["seed"]})
            assert again["seed"] == answer["seed"]
            assert again["token_ids"] == answer["token_ids"]

    async def test_speculative_is_static_sampled_too(self, http):
        request = body(temperature=0.8, top_p=0.95, top_k=50, seed=2**63 - 1)
        static = await ask(http, request)
        speculative = await ask(http, request | {"mode": "speculative"})
        assert static["token_ids"] == speculative["token_ids"] != FIRST

    @pytest.mark.parametrize(
        "mode", [{"mode": "static"}, {"mode": "speculative"}, {"mode": "speculative", "mrp_steps": 3}]
    )
    async def test_penalties_bias_and_words(self, http, mode):
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


class TestEnds:
    @pytest.mark.parametrize(
        ("stop", "number", "left"),
        [
            ("w351", 3, "w456 w456 "),
            ("w417 w351 w159", 9, "w456 w456 w351 w351 w112 w112 "),
            ("51 w159 w15", 10, "w456 w456 w351 w351 w112 w112 w417 w3"),
            (["nothing", "w112", "w351 w351"], 4, "w456 w456 "),
            ("w456", 1, ""),
        ],
    )
    async def test_stop_texts(self, http, stop, number, left):
        answer = await ask(http, body(stop=stop, seed=1))
        assert answer["text"] == left
        assert answer["finish_reason"] == "stop"
        assert answer["token_ids"] == FIRST[:number]
        assert answer["usage"]["completion_tokens"] == number
        again = await streamed(http, body(stop=stop, seed=1))
        assert essence(again) == essence(answer)

    async def test_end_tokens(self, http):
        assert (await ask(http, body()))["finish_reason"] == "stop"
        on = await ask(http, body(ignore_eos=True))
        assert on["token_ids"] == [*FIRST, EOS]
        assert on["finish_reason"] == "length"
        assert on["text"] == words(FIRST)

    @pytest.mark.parametrize("ignore_eos", [False, True])
    async def test_stop_tokens(self, http, ignore_eos):
        answer = await ask(http, body(stop_token_ids=[351, 7], ignore_eos=ignore_eos))
        assert answer["token_ids"] == FIRST[:2]
        assert answer["finish_reason"] == "stop"

    async def test_an_end_before_the_first_token(self, http):
        answer = await ask(http, body(stop_token_ids=[456], seed=1))
        assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("", [], "stop")
        assert essence(await streamed(http, body(stop_token_ids=[456], seed=1))) == essence(answer)


async def test_a_replica_gets_the_fields_and_their_defaults():
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
