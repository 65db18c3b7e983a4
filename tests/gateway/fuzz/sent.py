"""Drawn requests, sent sixteen at a time: how many got which answer."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import httpx

from tests.gateway.fuzz.valid import Served, valid_request
from tests.gateway.helpers import page

_TOGETHER = 16
#: what only the model knows: its length, and texts of which its vocabulary leaves nothing
_REFUSALS = ("maximum context length", "the prompt is empty, at least one token is needed")
EXPECTED = {"answered", "too late", "refused as documented"}


async def send(url: str, count: int, seed: int) -> Counter[str]:
    """How many requests got which answer; whatever is neither an answer nor a documented refusal is shown whole."""
    seen: Counter[str] = Counter()
    slots = asyncio.Semaphore(_TOGETHER)
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        served = await _served(http)

        async def send_one(number: int) -> None:
            route, body = valid_request(random.Random(f"{seed}.{number}"), served)
            async with slots:
                response = await http.post(route, json=body)
            seen[_verdict(route, body, response)] += 1

        await asyncio.gather(*map(send_one, range(count)))
        failovers = (await page(http))("mrp_request_failovers_total")
        assert failovers == 0
    return seen


async def _served(http: httpx.AsyncClient) -> Served:
    [model] = (await http.get("/v1/models")).json()["data"]
    allowed = list(range(model["vocab_size"] - 4))  # the golden checkpoints' last three are mask, end and unknown
    return Served(model["id"], model["block_size"], model["max_model_len"], allowed, model["chat_template"])


def _verdict(route: str, body: dict[str, Any], response: httpx.Response) -> str:
    status, timed = response.status_code, "timeout_s" in body
    if status == 200:
        text = response.text
        broken = body.get("stream") and ('"error":{' in text) and not (timed and "deadline_exceeded" in text)
        return f"200 broken: {text[:300]}" if broken else "answered"
    if status == 504 and timed:
        return "too late"
    if status in (400, 422) and any(refusal in response.text for refusal in _REFUSALS):
        return "refused as documented"
    return f"{status}: {response.text[:300]} to {route} {json.dumps(body)[:600]}"
