"""Bodies and fields that are refused: the status, the one shape of errors, what the message says."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from service.decode.modes import MODES
from tests.gateway.generate.helpers import GENERATE, body, problem, refused


class TestContent:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", "the body is not JSON"),
            (b"{", "the body is not JSON"),
            (b'{"prompt": "a",}', "the body is not JSON: trailing comma"),
            (b"{'prompt': 'a'}", "the body is not JSON"),
            (b"\xff\xfe", "the body is not JSON"),
            (b'{"prompt": "\xff"}', "the body is not JSON: invalid unicode"),
            (b'{"prompt": "a", "top_p": NaN}', "the body is not JSON"),
            (b"[" * 5000, "the body is not JSON: recursion limit"),
            (b'{"prompt": "a", "max_new_tokens": ' + b"9" * 5000 + b"}", "the body is not JSON: number out of range"),
            (b"[1, 2]", "the body is [1, 2], a JSON object is expected"),
            (b'"prompt"', 'the body is "prompt", a JSON object is expected'),
            (b"null", "the body is null, a JSON object is expected"),
        ],
    )
    async def test_a_body_that_is_no_json_object_is_refused(
        self, http: httpx.AsyncClient, content: bytes, text: str
    ) -> None:
        detail = problem(await http.post(GENERATE, content=content), 422)
        assert text in detail["message"]
        assert (detail["code"], detail["param"]) == ("invalid_request", None)
        assert len(detail["message"]) < 300

    async def test_the_declared_type_does_not_matter(self, http: httpx.AsyncClient) -> None:
        content = json.dumps(body()).encode()
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", ""):
            assert (await http.post(GENERATE, content=content, headers={"Content-Type": kind})).status_code == 200


class TestFields:
    @pytest.mark.parametrize(
        ("fields", "param", "text"),
        [
            ({"max_new_tokens": "12"}, "max_new_tokens", 'max_new_tokens is "12": Input should be a valid integer'),
            ({"max_new_tokens": 1.5}, "max_new_tokens", "max_new_tokens is 1.5"),
            ({"max_new_tokens": True}, "max_new_tokens", "max_new_tokens is true"),
            (
                {"max_new_tokens": 0},
                "max_new_tokens",
                "max_new_tokens is 0: Input should be greater than or equal to",
            ),
            ({"max_new_tokens": -1}, "max_new_tokens", "max_new_tokens is -1"),
            ({"temperature": "hot"}, "temperature", 'temperature is "hot"'),
            ({"temperature": -0.1}, "temperature", "temperature is -0.1: Input should be greater than or equal to 0"),
            ({"temperature": 101}, "temperature", "temperature is 101: Input should be less than or equal to 100"),
            ({"top_p": 0}, "top_p", "top_p is 0: Input should be greater than 0"),
            ({"top_p": 1.01}, "top_p", "top_p is 1.01: Input should be less than or equal to 1"),
            ({"top_k": -1}, "top_k", "top_k is -1: Input should be greater than or equal to 0"),
            ({"top_k": 2.5}, "top_k", "top_k is 2.5"),
            ({"min_p": 1.1}, "min_p", "min_p is 1.1: Input should be less than or equal to 1"),
            ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty is 0: Input should be greater than"),
            ({"frequency_penalty": -2.1}, "frequency_penalty", "frequency_penalty is -2.1: Input should be greater"),
            ({"presence_penalty": "1"}, "presence_penalty", 'presence_penalty is "1"'),
            ({"logit_bias": {"w5": 1}}, "logit_bias.w5.[key]", 'logit_bias.w5.[key] is "w5": Input should be a valid'),
            ({"logit_bias": {"5": -101}}, "logit_bias.5", "logit_bias.5 is -101: Input should be greater than"),
            ({"logit_bias": {"512": 1}}, "logit_bias", "logit_bias has token 512, allowed are 0 to 511 without"),
            (
                {"logit_bias": {"509": 1}},
                "logit_bias",
                "logit_bias has token 509, allowed are 0 to 511 without the mask",
            ),
            ({"min_tokens": 17}, "min_tokens", "min_tokens is 17, allowed are 0 to max_new_tokens, 16"),
            ({"bad_words": "w5"}, "bad_words", 'bad_words is "w5": Input should be a valid list'),
            ({"bad_words": ["w5", " "]}, "bad_words.1", 'bad_words.1 is " ": String should match'),
            ({"seed": -1}, "seed", "seed is -1: Input should be greater than or equal to 0"),
            ({"seed": 2**63}, "seed", f"seed is {2**63}: Input should be less than or equal to {2**63 - 1}"),
            ({"stop": 5}, "stop", "stop is 5"),
            ({"stop": ["a", 1]}, "stop.1", "stop.1"),
            ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
            ({"stop_token_ids": 5}, "stop_token_ids", "stop_token_ids is 5"),
            ({"stop_token_ids": ["a"]}, "stop_token_ids.0", 'stop_token_ids.0 is "a"'),
            ({"ignore_eos": 1}, "ignore_eos", "ignore_eos is 1: Input should be a valid boolean"),
            ({"return_trace": "yes"}, "return_trace", 'return_trace is "yes"'),
            ({"timeout_s": 0}, "timeout_s", "timeout_s is 0: Input should be greater than 0"),
            ({"timeout_s": 600.5}, "timeout_s", "timeout_s is 600.5, allowed is 0 < timeout_s <= 600.0"),
            ({"prompt_token_ids": "12"}, "prompt_token_ids", 'prompt_token_ids is "12"'),
            ({"prompt_token_ids": [1, 2.5]}, "prompt_token_ids.1", "prompt_token_ids.1 is 2.5"),
            ({"prompt_token_ids": [1, True]}, "prompt_token_ids.1", "prompt_token_ids.1 is true"),
        ],
    )
    async def test_a_value_of_another_type_or_range_is_named(
        self, http: httpx.AsyncClient, fields: dict[str, Any], param: str, text: str
    ) -> None:
        detail = await refused(http, body(**fields))
        assert detail["code"] == "invalid_request"
        assert detail["param"] == param
        assert text in detail["message"]

    async def test_a_stream_that_is_no_boolean_is_refused(self, http: httpx.AsyncClient) -> None:
        detail = problem(await http.post(GENERATE, json=body(stream="yes")), 422)
        assert 'stream is "yes"' in detail["message"]

    @pytest.mark.parametrize("value", ["infinity", 1e999, "1e999"])
    async def test_an_infinite_number_is_refused(self, http: httpx.AsyncClient, value: Any) -> None:
        content = json.dumps(body(timeout_s=value)).replace("Infinity", "1e999")
        assert problem(await http.post(GENERATE, content=content), 422)["param"] == "timeout_s"

    async def test_several_wrong_fields_are_all_named(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(top_p=7, top_k=-7, seeds=1))
        for message in ("top_p is 7", "top_k is -7", "'seeds' is not a field; did you mean 'seed'?"):
            assert message in detail["message"]

    async def test_a_long_value_is_cut(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(top_p="x" * 10000))
        assert len(detail["message"]) < 300


class TestUnknownFields:
    @pytest.mark.parametrize(
        ("fields", "param", "text"),
        [
            ({"max_tokens": 5}, "max_tokens", "'max_tokens' is not a field; did you mean 'max_new_tokens'?"),
            ({"temprature": 5}, "temprature", "did you mean 'temperature'?"),
            ({"zzz": 5}, "zzz", "'zzz' is not a field"),
            ({"": 5}, None, "is not a field"),
            ({"static": 5}, "static", "'static' is not a field"),
            ({"mrp_step": 2}, "mrp_step", "did you mean 'mrp_steps'?"),
        ],
    )
    async def test_the_nearest_field_is_named(
        self, http: httpx.AsyncClient, fields: dict[str, Any], param: str | None, text: str
    ) -> None:
        detail = await refused(http, body(**fields))
        assert detail["param"] == param
        assert text in detail["message"]

    @pytest.mark.parametrize(
        ("mode", "knob", "users", "its_knobs"),
        [
            ("static", {"threshold": 0.5}, "dynamic, speculative, remask", "tokens_per_step"),
            ("static", {"mrp_steps": 2}, "direct, speculative", "tokens_per_step"),
            ("static", {"verify": "dynamic"}, "speculative", "tokens_per_step"),
            ("remask", {"margin": 0.5}, "speculative", "threshold"),
            ("dynamic", {"entropy_bound": 0.1}, "sequential, entropy, speculative", "threshold"),
            ("entropy", {"threshold": 0.1}, "dynamic, speculative, remask", "entropy_bound"),
            ("dynamic", {"tokens_per_step": 2}, "static, sequential, speculative", "threshold"),
            ("dynamic", {"mrp_steps": 2}, "direct, speculative", "threshold"),
            ("direct", {"threshold": 0.5}, "dynamic, speculative, remask", "mrp_steps"),
            ("direct", {"max_drafts": 4}, "speculative", "mrp_steps"),
            ("remask", {"mrp_steps": 2}, "direct, speculative", "threshold"),
        ],
    )
    async def test_a_knob_of_another_mode_is_refused(
        self, http: httpx.AsyncClient, mode: str, knob: dict[str, Any], users: str, its_knobs: str
    ) -> None:
        (name,) = knob
        detail = await refused(http, body(mode=mode, **knob))
        assert detail["param"] == name
        wanted = f"mode {mode!r} does not use {name} ({users} do); its knobs are {its_knobs}"
        assert detail["message"] == wanted

    @pytest.mark.parametrize("mode", ["fast", "", "STATIC", 5, [], {}, True])
    async def test_an_unknown_mode_is_refused(self, http: httpx.AsyncClient, mode: Any) -> None:
        detail = await refused(http, body() | {"mode": mode})
        assert detail["param"] == "mode"
        allowed = ", ".join(MODES)
        assert detail["message"] == f"mode is {json.dumps(mode)}, allowed are {allowed}"

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"mode": "static", "tokens_per_step": 9}, "tokens_per_step is 9, allowed are 1 to 8"),
            ({"mode": "static", "tokens_per_step": 0}, "tokens_per_step is 0"),
            ({"mode": "direct", "mrp_steps": 9}, "mrp_steps is 9, allowed are 1 to 8"),
            ({"mode": "speculative", "mrp_steps": 0}, "mrp_steps is 0"),
            ({"mode": "speculative", "mrp_steps": "many"}, "Input should be a whole number or 'auto'"),
            ({"mode": "direct", "mrp_steps": "auto"}, "mrp_steps is auto, allowed are 1 to 8"),
            ({"mode": "dynamic", "threshold": 0}, "threshold is 0: Input should be greater than 0"),
            ({"mode": "remask", "threshold": 1.1}, "threshold is 1.1: Input should be less than or equal to 1"),
            ({"mode": "dynamic", "threshold": "1"}, 'threshold is "1"'),
            (
                {"mode": "entropy", "entropy_bound": -0.1},
                "entropy_bound is -0.1: Input should be greater than or equal",
            ),
            ({"mode": "speculative", "margin": 0}, "margin is 0: Input should be greater than 0"),
            ({"mode": "speculative", "margin": 1.5}, "margin is 1.5: Input should be less than or equal to 1"),
            (
                {"mode": "speculative", "margin": 0.5, "temperature": 0.7, "top_p": 0.9},
                "top_p is 0.9, top_k 0 and min_p 0.0, allowed with a margin are top_p 1, top_k 0 and min_p 0, or",
            ),
            ({"mode": "speculative", "verify": "direct"}, 'verify is "direct"'),
            ({"mode": "speculative", "entropy_bound": 0.1}, "entropy_bound is 0.1, drafts are verified against static"),
        ],
    )
    async def test_a_knob_out_of_range_is_refused(
        self, http: httpx.AsyncClient, fields: dict[str, Any], text: str
    ) -> None:
        detail = await refused(http, body(**fields))
        assert detail["param"] == list(fields)[1]
        assert text in detail["message"]
