"""Prompts that are refused, and those at the borders."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.model import load_checkpoint
from tests.gateway.conftest import MakeGenerator
from tests.gateway.generate.helpers import GENERATE, LENGTH, MASK, VOCABULARY, ask, body, problem, refused
from tests.gateway.helpers import over
from tests.tiny import GOLDEN

CHAT = [{"role": "user", "content": "a"}]


class TestPrompts:
    @pytest.mark.parametrize(
        ("fields", "param", "text"),
        [
            ({}, "messages", "none of them given, exactly one of prompt, prompt_token_ids, messages is allowed"),
            ({"prompt": "a", "prompt_token_ids": [1]}, "prompt_token_ids", "prompt and prompt_token_ids given"),
            ({"prompt": "a", "messages": CHAT}, "messages", "prompt and messages given"),
            (
                {"prompt": "a", "prompt_token_ids": [1], "messages": CHAT},
                "messages",
                "prompt and prompt_token_ids and messages given",
            ),
            ({"prompt": ""}, "prompt", 'prompt is "": String should have at least 1 character'),
            ({"prompt": " \n "}, "prompt", "the prompt is empty, at least one token is needed"),
            ({"prompt": ["a"]}, "prompt", 'prompt is ["a"]'),
            ({"prompt_token_ids": []}, "prompt_token_ids", "prompt_token_ids is []"),
            ({"messages": []}, "messages", "messages is []"),
            ({"messages": "a"}, "messages", 'messages is "a"'),
            ({"messages": [{"role": "user"}]}, "messages.0.content", "is missing"),
            ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role", "'system', 'user' or 'assistant'"),
            (
                {"messages": [{"role": "user", "content": "a", "nam": "b"}]},
                "messages.0.nam",
                "'nam' is not a field of a message; ",
            ),
        ],
    )
    async def test_exactly_one_prompt_that_is_not_empty_is_required(
        self, http: httpx.AsyncClient, fields: dict[str, Any], param: str, text: str
    ) -> None:
        detail = await refused(http, body(prompt_token_ids=None) | fields)
        assert detail["param"] == param
        assert text in detail["message"]

    @pytest.mark.parametrize(("prompt", "room"), [(8, 2040), (2047, 1), (2048, 0), (5000, 0)])
    async def test_a_prompt_that_is_too_long_is_refused_with_both_lengths(
        self, http: httpx.AsyncClient, prompt: int, room: int
    ) -> None:
        request = body(prompt_token_ids=[1] * prompt, max_new_tokens=room + 1)
        detail = await refused(http, request)
        assert (detail["code"], detail["param"]) == ("prompt_too_long", "max_new_tokens")
        lengths = f"{prompt} prompt tokens and max_new_tokens {room + 1} are {prompt + room + 1} tokens"
        assert detail["message"] == f"This model's maximum context length is {LENGTH} tokens. However, {lengths}."

    async def test_the_longest_prompt_is_answered(self, http: httpx.AsyncClient) -> None:
        assert len((await ask(http, body(prompt_token_ids=[1] * 2046, max_new_tokens=2)))["token_ids"]) <= 2

    @pytest.mark.parametrize("digits", [19, 400, 4300])
    async def test_an_absurd_length_is_refused(self, http: httpx.AsyncClient, digits: int) -> None:
        detail = problem(await http.post(GENERATE, json=body(max_new_tokens=10**digits - 1)), 422)
        assert detail["param"] == "max_new_tokens"

    async def test_the_operators_context_length_holds(self, make_generator: MakeGenerator) -> None:
        async with over(make_generator(max_model_len=30)) as http:
            assert (
                "maximum context length is 30 tokens. However, 8 prompt tokens and max_new_tokens 23"
                in (await refused(http, body(max_new_tokens=23)))["message"]
            )
            await ask(http, body(max_new_tokens=22))

    async def test_messages_need_a_chat_template(self, make_generator: MakeGenerator) -> None:
        bare = make_generator("r0", load_checkpoint(GOLDEN / "sdar-mrp-random-a"))
        async with over(bare) as http:
            (model,) = (await http.get("/v1/models")).json()["data"]
            detail = await refused(http, body(prompt_token_ids=None, messages=CHAT))
        assert model["chat_template"] is False
        assert detail["param"] == "messages"
        assert detail["message"] == "this checkpoint has no chat template; send `prompt` instead"

    @pytest.mark.parametrize("token", [VOCABULARY, -1, 2**63 - 1])
    async def test_a_token_out_of_the_vocabulary_is_refused(self, http: httpx.AsyncClient, token: int) -> None:
        detail = await refused(http, body(prompt_token_ids=[1, token]))
        assert detail["message"] == f"prompt_token_ids has {token}, allowed are 0 to {VOCABULARY - 1}"
        assert detail["param"] == "prompt_token_ids"

    async def test_a_token_beyond_64_bits_is_refused(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(prompt_token_ids=[1, 2**64]))
        assert detail["message"] == (
            f"prompt_token_ids.1 is {2**64}: Input should be less than or equal to {2**63 - 1}"
        )
        assert detail["param"] == "prompt_token_ids.1"

    async def test_the_mask_token_is_refused(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(prompt_token_ids=[1, MASK]))
        assert detail["message"] == f"prompt_token_ids has the mask token {MASK}, which prompts must not contain"
