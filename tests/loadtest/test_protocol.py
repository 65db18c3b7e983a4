"""Answers of both protocols become observations, and what is wrong with an answer becomes its error."""

import httpx
import pytest

from loadtest.generator.client import Client
from loadtest.generator.protocol import BROKEN_OFF, Observation, Route, reader
from tests.loadtest.fake import Fake, frames, openai_frames, serve

STREAM = Route("/generate", stream=True, openai=False)
JSON = Route("/generate", stream=False, openai=False)
CHAT_STREAM = Route("/v1/chat/completions", stream=True, openai=True)
CHAT = Route("/v1/chat/completions", stream=False, openai=True)
ROUTES = (STREAM, JSON, CHAT_STREAM, CHAT)


def observed(route, lines=(), body=None):
    """The observation of lines that come at 11, 12, … or of a body that comes at 11; due at 9, sent at 10."""
    observation = Observation(route, "static", 9.0, 10.0, status=200)
    parser = reader(observation)
    if body is not None:
        parser.whole(body, 11.0)
        return observation
    at = 10.0
    for frame in lines:
        at += 1
        for line in frame.splitlines(keepends=True):
            parser.line(line, at)
    parser.end(at)
    return observation


@pytest.mark.parametrize(("route", "lines"), [(STREAM, frames), (CHAT_STREAM, openai_frames)])
def test_a_stream_has_blocks_and_counts_from_when_it_was_due(route, lines):
    observation = observed(route, lines())
    assert observation.ok
    assert observation.blocks == [(11.0, 4), (12.0, 4)]
    assert (observation.first_block_s, observation.gaps_s) == (2.0, [1.0])
    assert (observation.tokens, observation.prompt_tokens, observation.cached_tokens) == (8, 5, 3)
    assert (observation.tokens_per_forward, observation.finish, observation.text) == (2.5, "length", "aa")
    assert observation.tokens_per_s == 8 / observation.total_s


@pytest.mark.parametrize(("route", "lines"), [(STREAM, frames), (CHAT_STREAM, openai_frames)])
def test_a_stream_without_its_end_is_broken_off(route, lines):
    observation = observed(route, list(lines())[:-1])
    assert (observation.error, observation.blocks) == (BROKEN_OFF, [(11.0, 4), (12.0, 4)])


@pytest.mark.parametrize("route", [STREAM, CHAT_STREAM])
def test_an_error_within_a_stream_keeps_its_reason(route):
    assert observed(route, [b'event: error\ndata: {"error": {"code": "a", "message": "b"}}\n\n']).error == "a: b"


@pytest.mark.parametrize("route", ROUTES)
def test_malformed_answers_are_errors_and_do_not_raise(route):
    for line in (b"data: {", b"data: []", b'data: {"choices": 3}', b"event: block\ndata: {}"):
        assert not route.stream or observed(route, [line + b"\n\n"]).error
    for body in (b"", b"{", b"[]", b"{}", b'{"choices": []}'):
        assert route.stream or observed(route, body=body).error.startswith("malformed answer")


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"error": {"code": "overloaded", "message": "m"}}', "overloaded: m"), (b"<html>", "<html>"), (b"", "an empty")],
)
def test_a_refusal_keeps_its_reason_and_its_retry_after(body, message):
    observation = Observation(JSON, "static", 0.0, 0.0, status=429)
    reader(observation).refused(body, "2.5", 1.0)
    assert observation.error.startswith(message)
    assert (observation.retry_after, observation.ok) == (2.5, False)


def test_tokens_are_shared_among_frames_of_servers_that_send_no_ids():
    lines = [b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": null}]}\n\n'] * 3
    lines += [b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 8}}\n\n', b"data: [DONE]\n\n"]
    observation = observed(CHAT_STREAM, lines)
    assert [tokens for _, tokens in observation.blocks] == [3, 3, 2]
    assert (observation.tokens, observation.tokens_per_forward) == (8, None)


# --- the client of locust's users ---------------------------------------------------------------------


def ask(url, route):
    observation = Observation(route, "static", 0.0, 0.0)
    client = Client(url, timeout_s=10)
    client.ask({"stream": route.stream}, observation)
    client.close()
    return observation


def test_the_client_sees_every_block_when_it_comes_on_all_routes():
    with serve(Fake(block_s=0.1)) as url:
        observations = [ask(url, route) for route in ROUTES]
    assert [observation.tokens for observation in observations] == [8] * 4
    # frames are far shorter than any buffer: a client that reads pieces of a fixed size would see no gap
    assert observations[0].gaps_s[0] > 0.05
    with serve(Fake(breaks=True)) as url:
        assert (broken := ask(url, STREAM)).status == 200
        assert not broken.ok
    assert ask("http://127.0.0.1:9", JSON).error.startswith("connection: ")


# --- the service's own answers -------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
async def test_the_readers_understand_the_service(http: httpx.AsyncClient, route):
    body = {"messages": [{"role": "user", "content": "w3 w4"}], "stream": route.stream, "ignore_eos": True}
    if route.openai:
        usage = {"stream_options": {"include_usage": True}} if route.stream else {}
        body |= {"model": "golden", "max_tokens": 12, **usage}
    else:
        body["max_new_tokens"] = 12
    response = await http.post(route.path, json=body)
    assert response.status_code == 200, response.text
    frames = [response.content] if route.stream else ()
    observation = observed(route, frames, None if route.stream else response.content)
    assert (observation.error, observation.tokens, len(observation.token_ids)) == ("", 12, 12)
    assert observation.finish == "length"
    assert sum(tokens for _, tokens in observation.blocks) == 12
    assert observation.tokens_per_forward > 0
    assert observation.prompt_tokens > 0
