"""Server-sent events parsed by the grammar of the standard: the pieces make the answer, whatever the text holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.streams import frame
from service.decode.modes import MODES
from tests.gateway.fuzz.test_bodies import FEW, any_json, whole

_LINE_END = re.compile("\r\n|\n|\r")


def events(content: bytes) -> Iterator[tuple[str, str]]:
    """(event, data) of a stream as the HTML standard reads it: any line end, comments, one leading space."""
    text = content.decode("utf-8", "strict").removeprefix("\ufeff")
    name, data = "", []
    *lines, rest = _LINE_END.split(text)
    assert rest == "", "the stream ends within a line"
    for line in lines:
        field, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                yield name or "message", "\n".join(data)
            name, data = "", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
        else:
            assert line.startswith(":"), f"a line that is neither field nor comment: {line!r}{colon}"
    assert not data, "the stream ends within an event"


@given(value=any_json | st.text(alphabet="\r\n:\u2028\u2029\x85\0 e", max_size=20))
def test_a_frame_is_one_event_whatever_it_holds(value: object) -> None:
    [(name, data)] = events(frame("block", {"text": value}))
    assert name == "block"
    assert json.loads(data) == {"text": value}


@FEW
@given(
    mode=st.sampled_from(list(MODES)),
    temperature=st.sampled_from([0, 0.7, 1.5]),
    seed=st.integers(0, 2**63 - 1),
    length=st.integers(1, 40),
    stop=st.lists(st.sampled_from(["w1", " ", "w4", "w50", "\n", "9"]), max_size=2),
)
def test_a_stream_is_the_whole_answer(
    http: httpx.Client, mode: str, temperature: float, seed: int, length: int, stop: list[str]
) -> None:
    knobs = {"mode": mode, "temperature": temperature, "seed": seed, "max_new_tokens": length}
    body = {**whole("/generate", "w5 w6 w7"), **knobs, "stop": stop}
    answer = http.post("/generate", json=body).json()
    *blocks, (last, done) = events(http.post("/generate", json={**body, "stream": True}).content)
    assert last == "done"
    assert {name for name, _ in blocks} <= {"block"}
    pieces = [json.loads(data) for _, data in blocks]
    assert "".join(piece["text"] for piece in pieces) == answer["text"]
    assert [token for piece in pieces for token in piece["token_ids"]] == answer["token_ids"]
    assert {name: json.loads(done)[name] for name in ("finish_reason", "mode", "seed", "usage")} == {
        name: answer[name] for name in ("finish_reason", "mode", "seed", "usage")
    }


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@FEW
@given(seed=st.integers(0, 2**62), length=st.integers(1, 30), n=st.integers(1, 3))
def test_openais_stream_is_the_whole_answer(http: httpx.Client, route: str, seed: int, length: int, n: int) -> None:
    body = {**whole(route, "w5 w6 w7"), "seed": seed, "max_tokens": length, "n": n, "temperature": 0.9}
    answer = http.post(route, json=body).json()
    content = http.post(route, json={**body, "stream": True, "stream_options": {"include_usage": True}}).content
    *frames, (_, last) = events(content)
    assert last == "[DONE]"
    assert {name for name, _ in frames} == {"message"}
    texts = [""] * n
    for data in (json.loads(data) for _, data in frames):
        for choice in data["choices"]:
            texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    told = [choice.get("text", choice.get("message", {}).get("content")) for choice in answer["choices"]]
    assert texts == told
    assert json.loads(frames[-1][1])["usage"] == answer["usage"]


@FEW
@given(seed=st.integers(0, 2**62), length=st.integers(1, 30), stop=st.sampled_from([None, "w1", " ", "9"]))
def test_anthropics_stream_is_the_whole_answer(http: httpx.Client, seed: int, length: int, stop: str | None) -> None:
    body = {**whole("/v1/messages", "w5 w6 w7"), "seed": seed, "max_tokens": length, "temperature": 0.9}
    body |= {"stop_sequences": [stop]} if stop else {}
    answer = http.post("/v1/messages", json=body).json()
    told = [json.loads(data) for _, data in events(http.post("/v1/messages", json={**body, "stream": True}).content)]
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == "".join(block["text"] for block in answer["content"])
    assert told[-2]["delta"] == {name: answer[name] for name in ("stop_reason", "stop_sequence")}
    assert told[-2]["usage"]["output_tokens"] == answer["usage"]["output_tokens"]


@FEW
@given(seed=st.integers(0, 2**62), length=st.integers(1, 30))
def test_the_stream_of_responses_is_the_whole_answer(http: httpx.Client, seed: int, length: int) -> None:
    body = {**whole("/v1/responses", "w5 w6 w7"), "seed": seed, "max_output_tokens": length, "temperature": 0.9}
    answer = http.post("/v1/responses", json=body).json()
    told = [json.loads(data) for _, data in events(http.post("/v1/responses", json={**body, "stream": True}).content)]
    deltas = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert deltas == "".join(part["text"] for item in answer["output"] for part in item["content"])
    assert (told[-1]["response"]["status"], told[-1]["response"]["usage"]["output_tokens"]) == (
        answer["status"],
        answer["usage"]["output_tokens"],
    )
