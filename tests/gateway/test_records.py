"""The records of tokens that one request may ask for are bounded, in every API that has them."""

from dataclasses import replace
from typing import Any

import pytest

from service.api.protocol import MAX_RECORDS
from tests.gateway.apis import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    chat,
    chunk,
    completion,
    ending,
    message,
    refused,
    response,
)
from tests.gateway.doubles import CARD, Scripted
from tests.gateway.helpers import over

LONG = replace(CARD, max_model_len=10**6)
#: a body -> the field of its length, and the records of a token, over all answers
ASKING: list[tuple[str, dict[str, Any], str, int]] = [
    (COMPLETIONS, completion(logprobs=20, n=128), "max_tokens", 128 * 21),
    (COMPLETIONS, completion(prompt=["a", "b"], logprobs=0, n=2), "max_tokens", 4),
    (CHAT, chat(logprobs=True, top_logprobs=5, n=8), "max_tokens", 8 * 6),
    (CHAT, chat(logprobs=True, return_trace=True, return_step_map=True, n=2), "max_tokens", 2 * 4),
    (CHAT, chat(logprobs=True, top_logprobs=20, stream=True), "max_tokens", 21),
    (GENERATE, {"prompt": "a", "n": 64, "return_trace": True, "return_step_map": True}, "max_new_tokens", 64 * 3),
    (RESPONSES, response(return_trace=True), "max_output_tokens", 2),
    (MESSAGES, message(return_trace=True), "max_tokens", 2),
]


@pytest.mark.parametrize(("path", "body", "name", "records"), ASKING)
async def test_records_are_bounded(path, body, name, records):
    most = MAX_RECORDS // records
    async with over(Scripted(chunk(), ending(), serves=LONG), max_queue_s=10.0**9) as http:
        assert (await http.post(path, json={**body, name: most})).status_code == 200
        error = await refused(http, path, {**body, name: most + 1})
    assert error["param"] == name
    assert f"allowed are {MAX_RECORDS}" in error["message"]


async def test_answers_without_records_are_not_bounded():
    async with over(Scripted(chunk(), ending(), serves=LONG), max_queue_s=10.0**9) as http:
        assert (await http.post(CHAT, json=chat(n=128, max_tokens=10**5))).status_code == 200
