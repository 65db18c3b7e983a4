"""Answers of both protocols become observations, and what is wrong with one becomes its error."""

import json

import httpx
import pytest

from loadtest.generator.client import Client
from loadtest.generator.protocol import BROKEN_OFF, Observation, Route, reader
from tests.loadtest.fake import Fake, answer, frames, openai_answer, openai_frames, serve

STREAM = Route("/generate", stream=True, openai=False)
JSON = Route("/generate", stream=False, openai=False)
CHAT_STREAM = Route("/v1/chat/completions", stream=True, openai=True)
CHAT = Route("/v1/chat/completions", stream=False, openai=True)


def observed(route, lines=(), body=None, due=9.0, began=10.0):
    """The observation of lines that come at 11, 12, … or of a body that comes at 11."""
    seen = Observation(route, "static", due, began, status=200)
    read = reader(seen)
    if body is not None:
        read.whole(body, 11.0)
        return seen
    at = 10.0
    for frame in lines:
        at += 1
        for line in frame.splitlines(keepends=True):
            read.line(line, at)
    read.end(at)
    return seen


@pytest.mark.parametrize(("route", "lines"), [(STREAM, frames), (CHAT_STREAM, openai_frames)])
def test_a_stream_tells_blocks_and_counts_from_when_it_was_due(route, lines):
    seen = observed(route, lines())
    assert seen.ok
    assert seen.blocks == [(11.0, 4), (12.0, 4)]
    assert (seen.first_block_s, seen.gaps_s) == (2.0, [1.0])
    assert (seen.tokens, seen.prompt_tokens, seen.cached_tokens) == (8, 5, 3)
    assert (seen.tokens_per_forward, seen.finish, seen.text) == (2.5, "length", "aa")
    assert seen.tokens_per_s == 8 / seen.total_s


@pytest.mark.parametrize(("route", "content"), [(JSON, answer), (CHAT, openai_answer)])
def test_a_whole_answer_shows_no_first_block(route, content):
    seen = observed(route, body=json.dumps(content()).encode())
    assert seen.ok
    assert (seen.first_block_s, seen.gaps_s, seen.total_s) == (None, [], 2.0)
    assert (seen.tokens, seen.tokens_per_forward, seen.text) == (8, 2.5, "ab")


def test_lines_may_end_in_carriage_returns_and_comments_are_no_frames():
    lines = [b": keep-alive\r\n\r\n", *(frame.replace(b"\n", b"\r\n") for frame in frames())]
    assert observed(STREAM, lines).blocks == [(12.0, 4), (13.0, 4)]


@pytest.mark.parametrize(("route", "lines"), [(STREAM, frames), (CHAT_STREAM, openai_frames)])
def test_a_stream_without_its_end_is_broken_off(route, lines):
    seen = observed(route, list(lines())[:-1])
    assert (seen.error, seen.blocks) == (BROKEN_OFF, [(11.0, 4), (12.0, 4)])
    assert not seen.ok


@pytest.mark.parametrize("route", [STREAM, CHAT_STREAM])
def test_an_error_in_the_midst_is_told(route):
    error = json.dumps({"error": {"code": "out_of_memory", "message": "no room"}}).encode()
    seen = observed(route, [b"event: error\ndata: " + error + b"\n\n"])
    assert seen.error == "out_of_memory: no room"


@pytest.mark.parametrize("line", [b"data: {", b"data: []", b'data: {"choices": 3}', b"event: block\ndata: {}"])
@pytest.mark.parametrize("route", [STREAM, CHAT_STREAM])
def test_malformed_frames_are_errors_and_do_not_raise(route, line):
    assert observed(route, [line + b"\n\n"]).error


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"choices": []}'])
@pytest.mark.parametrize("route", [JSON, CHAT])
def test_malformed_answers_are_errors_and_do_not_raise(route, body):
    assert observed(route, body=body).error.startswith("malformed answer")


@pytest.mark.parametrize(
    ("body", "said"),
    [(b'{"error": {"code": "overloaded", "message": "m"}}', "overloaded: m"), (b"<html>", "<html>"), (b"", "an empty")],
)
def test_a_refusal_keeps_its_reason_and_when_to_come_back(body, said):
    seen = Observation(JSON, "static", 0.0, 0.0, status=429)
    reader(seen).refused(body, "2.5", 1.0)
    assert seen.error.startswith(said)
    assert (seen.retry_after, seen.ok) == (2.5, False)


def test_tokens_are_shared_among_frames_of_servers_that_send_no_ids():
    lines = [b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": null}]}\n\n'] * 3
    lines += [b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 8}}\n\n', b"data: [DONE]\n\n"]
    seen = observed(CHAT_STREAM, lines)
    assert [tokens for _, tokens in seen.blocks] == [3, 3, 2]
    assert (seen.tokens, seen.tokens_per_forward) == (8, None)


def asked(url, route):
    seen = Observation(route, "static", 0.0, 0.0)
    client = Client(url, timeout_s=10)
    client.ask({"stream": route.stream}, seen)
    client.close()
    return seen


def test_the_client_sees_every_block_when_it_comes():
    with serve(Fake(block_s=0.15)) as url:
        seen = asked(url, STREAM)
    assert seen.ok
    # frames are far shorter than any buffer: a client that reads pieces of a fixed size would see no gap
    assert seen.gaps_s[0] > 0.07


@pytest.mark.parametrize("route", [STREAM, CHAT_STREAM, JSON, CHAT])
def test_the_client_reads_all_routes(route):
    with serve(Fake()) as url:
        assert asked(url, route).tokens == 8


def test_the_client_observes_broken_connections_and_refusals():
    with serve(Fake(breaks=True)) as url:
        broken = asked(url, STREAM)
    assert (broken.status, len(broken.blocks), broken.ok) == (200, 1, False)
    with serve(Fake(status=429)) as url:
        refused = asked(url, JSON)
    assert (refused.status, refused.error, refused.retry_after) == (429, "busy: later", 0.2)
    assert asked("http://127.0.0.1:9", JSON).error.startswith("connection: ")


# --- the service's own answers -------------------------------------------------------------------------


@pytest.mark.parametrize("route", [STREAM, JSON, CHAT_STREAM, CHAT])
async def test_the_service_speaks_what_is_read(http: httpx.AsyncClient, route):
    body = {"messages": [{"role": "user", "content": "w3 w4"}], "stream": route.stream, "ignore_eos": True}
    if route.openai:
        body |= {
            "model": "golden",
            "max_tokens": 12,
            "stream_options": {"include_usage": True} if route.stream else None,
        }
    else:
        body["max_new_tokens"] = 12
    seen = Observation(route, "default", 0.0, 0.0)
    response = await http.post(route.path, json=body)
    seen.status = response.status_code
    assert seen.status == 200, response.text
    if route.stream:
        read = reader(seen)
        for line in response.content.splitlines(keepends=True):
            read.line(line, 1.0)
        read.end(1.0)
    else:
        reader(seen).whole(response.content, 1.0)
    assert (seen.error, seen.tokens, len(seen.token_ids), seen.finish) == ("", 12, 12, "length")
    assert sum(tokens for _, tokens in seen.blocks) == 12
    assert seen.tokens_per_forward > 0
    assert seen.prompt_tokens > 0
