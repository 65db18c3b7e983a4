"""Invalid bodies and unusual texts: never a 5xx, never a hang, always the same shape of errors."""

import functools
import gzip
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.apis import APIS, CHAT, COMPLETIONS, COUNT, GENERATE, MESSAGES, RESPONSES, SCORE

ROUTES = (*(api.path for api in APIS), COUNT, SCORE)
FEW = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBERS = ("1e400", "-1e400", "1e-400", "-0.0", "-0", "1e5", "0.0000001", str(2**63), str(2**70), str(-(2**70)))
NUMBERS += ("9" * 400, "9" * 5000, "0." + "3" * 5000, "1" + "0" * 309 + ".5")
NUMBERS += ("NaN", "Infinity", "1E+2", "01", "+1", ".5")
FIELDS = ("max_new_tokens", "max_tokens", "n", "seed", "temperature", "top_p", "top_k", "timeout_s", "threshold")
FIELDS += ("tokens_per_step", "mrp_steps", "logprobs", "stop_token_ids", "prompt_token_ids", "stream", "stop")

ODD = ("\0", "\ufeff", "\u202e", "\u0301" * 50, "👩🏽‍🚀", "\U0010ffff", "\ufffe", "\x7f", "\u2028")
ODD += ("\r\n\r\ndata: x\n\n", "event: done\n\n", "<|im_start|>", "<|im_end|>", "<|MASK|>", "</s>", "w509")
texts = st.lists(st.sampled_from(ODD) | st.text(max_size=8), min_size=1, max_size=6).map("".join).filter(bool)


def whole(route: str, text: str, **fields: Any) -> dict[str, Any]:
    if route == SCORE:
        return {"model": "golden", "items": [{"prompt": text}], "labels": ["w7"], **fields}
    api = next(api for api in APIS if api.path == (MESSAGES if route == COUNT else route))
    system = {"system": text} if api.path == MESSAGES else {}
    return api.body(text, mode="static", **{api.limit: 8}, **system) | fields


def sane(response: httpx.Response) -> httpx.Response:
    """Checks for an answer or a client error. A time limit that is too short counts as a client error."""
    if response.status_code != 200:
        detail = response.json()["error"]
        refused = response.status_code in (400, 404, 413, 422)
        assert refused or detail["message"].startswith("timeout_s is "), (response.status_code, response.text)
        assert {"code", "message", "param", "request_id"} <= detail.keys()
        assert detail["request_id"] == response.headers["x-request-id"]
        assert len(detail["message"]) < 2000
    return response


def post(http: httpx.Client, route: str, content: bytes, **headers: str) -> httpx.Response:
    return sane(http.post(route, content=content, headers={"content-type": "application/json", **headers}))


@pytest.mark.parametrize("route", ROUTES)
@FEW
@given(text=texts)
def test_any_text_is_answered_or_refused(http, route, text):
    response = post(http, route, json.dumps(whole(route, text)).encode())
    if response.status_code in (400, 422):  # the words tokenizer knows no such characters: nothing is left
        assert "empty" in response.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES)
@FEW
@given(field=st.sampled_from(FIELDS), number=st.sampled_from(NUMBERS), listed=st.booleans())
def test_numbers_of_any_size(http, route, field, number, listed):
    body = json.dumps(whole(route, "w5 w6"))
    content = f'{body[:-1]}, "{field}": {f"[{number}]" if listed else number}}}'
    post(http, route, content.encode())


@pytest.mark.parametrize("route", ROUTES)
@FEW
@given(data=st.data())
def test_mangled_bodies(http, route, data):
    """Cut anywhere, one byte changed or doubled: an answer if it still is JSON of a request."""
    content = json.dumps(whole(route, "w5 é😀"), ensure_ascii=False).encode()
    at = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.binary(min_size=0, max_size=2))
    post(http, route, data.draw(st.sampled_from([content[:at], content[:at] + byte + content[at + 1 :], content * 2])))


blocks = st.lists(
    st.dictionaries(
        st.sampled_from(["type", "text", "id", "name", "input", "tool_use_id", "call_id", "content", "role", "output"]),
        st.sampled_from(["text", "tool_use", "tool_result", "thinking", "message", "function_call", "reasoning", "a"])
        | st.sampled_from([{}, [], None, 1, [{"type": "text", "text": "w5"}]]),
        max_size=5,
    ),
    max_size=4,
)


@pytest.mark.parametrize(("route", "field"), [(MESSAGES, "content"), (RESPONSES, "input")])
@FEW
@given(blocks=blocks)
def test_blocks_of_any_form(http, route, field, blocks):
    body = whole(route, "w5")
    body |= {"input": blocks} if field == "input" else {"messages": [{"role": "user", "content": blocks}]}
    post(http, route, json.dumps(body).encode())


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("route", ROUTES)
@FEW
@given(data=st.data())
def test_a_field_of_any_json(http, route, data):
    names = ("prompt", "messages", "mode", "model", "echo", "stream_options", "return_trace")
    names += ("system", "tools", "tool_choice", "thinking", "output_config", "metadata", "stop_sequences")
    names += ("items", "labels", "label_token_ids", "mark", "normalize", "top_logprobs")
    names += ("input", "instructions", "text", "reasoning", "include", "previous_response_id", "store")
    field_names = st.sampled_from((*FIELDS, *names, "response_format", "regex", "choice", "grammar", *TOOLS))
    fields = data.draw(st.dictionaries(field_names, any_json, max_size=3))
    fields.pop("timeout_s", None)  # a 504 would be right
    post(http, route, json.dumps({**whole(route, "w5 w6"), **fields}).encode())


TOOLS = ("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs")
#: what is near to a tool, a choice, and messages with calls and results
spoiled = any_json | st.sampled_from(["function", "a", "{}", "required", "auto", "tool", "assistant"])
functions = st.fixed_dictionaries(
    {"name": st.just("a") | spoiled}, optional={"parameters": st.just({"type": "object"}) | spoiled, "strict": spoiled}
)
near_tools = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": functions | spoiled}), max_size=2)
near_calls = st.lists(
    st.fixed_dictionaries(
        {"id": st.just("a") | spoiled, "function": st.fixed_dictionaries({"name": spoiled, "arguments": spoiled})},
        optional={"type": spoiled},
    ),
    max_size=2,
)
A_TOOL = {"type": "function", "function": {"name": "a"}}
near_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]) | spoiled},
        optional={
            "content": spoiled,
            "tool_calls": near_calls | spoiled,
            "tool_call_id": st.just("a") | spoiled,
            "reasoning_content": spoiled,
        },
    ),
    max_size=4,
)


@FEW
@given(tools=near_tools, choice=spoiled, messages=near_messages, effort=spoiled)
def test_tools_and_calls_of_any_form(tools_http, tools, choice, messages, effort):
    body = whole(CHAT, "w5 w6")
    conversation = [*body["messages"], *messages]
    for fields in (
        {"tools": tools},
        {"messages": conversation},
        {"tools": tools, "tool_choice": choice, "messages": conversation},
        {"tools": [A_TOOL], "tool_choice": choice},
        {"reasoning_effort": effort, "chat_template_kwargs": choice},
    ):
        post(tools_http, CHAT, json.dumps({**body, **fields}).encode())


GOOD = json.dumps(whole(GENERATE, "w5 w6")).encode()


#: the same bytes at any time, so that tests have the same names in every process
zipped = functools.partial(gzip.compress, mtime=0)


@pytest.mark.parametrize("route", ROUTES)
def test_a_gzip_body_is_inflated(http, route):
    content = json.dumps(whole(route, "w5 w6")).encode()
    response = post(http, route, gzip.compress(content), **{"content-encoding": "gzip"})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("content", "encoding", "status", "message"),
    [
        pytest.param(zipped(b"0" * 5 * 10**7), "gzip", 413, "the inflated body has more than 65536 bytes", id="bomb"),
        pytest.param(zipped(b" " * 65536 + GOOD), "gzip", 413, "body has more than 65536 bytes", id="too long"),
        pytest.param(zipped(zipped(GOOD)), "gzip", 422, "not JSON", id="twice"),
        pytest.param(zipped(GOOD)[:-4], "gzip", 422, "one whole gzip stream", id="cut"),
        pytest.param(zipped(GOOD) + b"0", "gzip", 422, "one whole gzip stream", id="more behind"),
        pytest.param(GOOD, "gzip", 422, "not gzip", id="not gzip"),
        pytest.param(GOOD, "br", 422, "is 'br', allowed are gzip and identity", id="brotli"),
        pytest.param(GOOD, "gzip, gzip", 422, "allowed are gzip and identity", id="two codings"),
    ],
)
def test_other_compressed_bodies_are_refused(http, content, encoding, status, message):
    response = post(http, GENERATE, content, **{"content-encoding": encoding})
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "", "a" * 500])
def test_the_declared_type_does_not_matter(http, kind):
    assert post(http, GENERATE, GOOD, **{"content-type": kind}).status_code == 200


def test_the_most_choices_are_answered(http):
    body = whole(COMPLETIONS, "w5 w6", n=128, max_tokens=2)
    assert len(post(http, COMPLETIONS, json.dumps(body).encode()).json()["choices"]) == 128
