"""Bodies to send to POST /generate, answers and streams to read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from service.api.errors import ErrorAnswer
from tests.gateway.helpers import assert_shape
from tests.tiny import GOLDEN

GENERATE = "/generate"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "sdar-mrp-random-a" / "expected.json").read_text("utf-8"))
KNOBS = ("tokens_per_step", "threshold", "mrp_steps")
PROMPT = CASES[0]["prompt_token_ids"]
MASK, EOS, UNKNOWN, VOCABULARY, LENGTH = 509, 510, 511, 512, 2048


def body(**fields: Any) -> dict[str, Any]:
    """A small request; None takes a field out."""
    whole = {"prompt_token_ids": PROMPT, "max_new_tokens": 16, "mode": "static"} | fields
    return {name: value for name, value in whole.items() if value is not None}


def golden_body(case: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    names = ("mode", "prompt_token_ids", "max_new_tokens", "temperature", *KNOBS)
    return {name: case[name] for name in names if name in case} | fields


def words(tokens: Sequence[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


#: statistics that hang on what the prefix cache had
CACHED = ("cached_tokens", "tokens_per_forward_total")


async def ask(http: httpx.AsyncClient, request: Mapping[str, Any]) -> dict[str, Any]:
    response = await http.post(GENERATE, json=request)
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"]
    answer: dict[str, Any] = response.json()
    return answer


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer that has the one shape of all errors."""
    assert response.status_code == status, response.text
    detail: dict[str, Any] = response.json()["error"]
    if response.url.path.startswith("/v1/"):
        assert detail.pop("type")  # OpenAI's
    assert_shape(ErrorAnswer, {"error": detail})
    assert detail["request_id"] == response.headers["x-request-id"]
    return detail


async def refused(http: httpx.AsyncClient, request: Mapping[str, Any], status: int = 422) -> dict[str, Any]:
    """The error, which is the same whether a stream was asked for or not."""
    detail = problem(await http.post(GENERATE, json=request), status)
    streamed = problem(await http.post(GENERATE, json=dict(request) | {"stream": True}), status)
    assert detail | {"request_id": ""} == streamed | {"request_id": ""}
    return detail


async def frames(http: httpx.AsyncClient, request: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    response = await http.post(GENERATE, json=dict(request) | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    return read_frames(response.content)


def read_frames(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    *events, rest = content.decode("utf-8", "strict").split("\n\n")
    assert rest == ""
    read = []
    for event in events:
        name, data = event.split("\n")
        read.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return read


async def streamed(http: httpx.AsyncClient, request: Mapping[str, Any]) -> dict[str, Any]:
    *blocks, (last, done) = await frames(http, request)
    assert last == "done"
    assert {name for name, _ in blocks} <= {"block"}
    answer = dict(done)
    answer["text"] = "".join(block["text"] for _, block in blocks)
    answer["token_ids"] = [token for _, block in blocks for token in block["token_ids"]]
    if request.get("return_trace"):
        answer["trace"] = [step for _, block in blocks for step in block["trace"]]
    return answer


def essence(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without the parts that differ between two runs: its id, its times, and the prefilled tokens."""
    stats = {name: value for name, value in answer["stats"].items() if not name.endswith("_ms") and name not in CACHED}
    forwards = {**stats["forwards"], "prefill": 0, "mrp": 0}
    return {**answer, "id": "", "stats": {**stats, "forwards": forwards}}
