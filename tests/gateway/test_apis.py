"""What all APIs promise: streams that make the whole answer, refusals, errors, limits, keys, and failover."""

import json
from dataclasses import replace
from typing import Any

import pytest

from service.engine.request import Stats
from service.errors import DeadlineExceeded, NotReady, QueueFull
from service.messages.wire import Ending, Failure
from service.replica.replica import Replica
from service.text.tools.formats import TOOL_FORMATS, ReasoningFormat
from tests.gateway.apis import (
    CHAT,
    COMPLETIONS,
    COUNT,
    GENERATE,
    MESSAGES,
    RESPONSES,
    ask,
    by_choice,
    chat,
    chat_message,
    choices,
    chunk,
    completion,
    each_api,
    each_foreign_api,
    ending,
    essence,
    message,
    read_events,
    refused,
    response,
    stream_events,
    user,
    whole_message,
)
from tests.gateway.doubles import CARD, LosesFirst, Scripted
from tests.gateway.helpers import over, page
from tests.gateway.openai.test_tools import NAMED, TOOLS

BODIES = {COMPLETIONS: completion, CHAT: chat, RESPONSES: response, MESSAGES: message}

# --- tools -----------------------------------------------------------------------------------------

_FAULTY = {"type": "object", "properties": {"a": {"type": "strin"}, "b": {"pattern": "(?=a)"}, "c": {"enum": [1]}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            CHAT,
            chat(tools=[{"type": "function", "function": {"name": "f", "parameters": _FAULTY}}]),
            "tools.function.parameters",
        ),
        (RESPONSES, response(tools=[{"type": "function", "name": "f", "parameters": _FAULTY}]), "tools.parameters"),
        (MESSAGES, message(tools=[{"name": "f", "input_schema": _FAULTY}]), "tools.input_schema"),
    ],
)
async def test_the_faults_of_a_tool_are_named_or_refused(
    path: str, body: dict[str, Any], field: str, stream: bool, caller: Replica
) -> None:
    async with over(caller) as http:
        answer = await http.post(path, json=body | {"stream": stream})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored-fields"] == f"{field}.pattern, {field}.type"
        strict = await http.post(path, json=body | {"stream": stream}, headers={"x-strict-fields": "true"})
        assert strict.status_code == 400


# --- streams ---------------------------------------------------------------------------------------


#: streams of each API that another replica continues. `speculative` has a fixed number of drafts: how many pay is a
#: matter of a replica's past.
CONTINUED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat(max_tokens=24, mode="static", temperature=0.9, seed=4, n=2, ignore_eos=True, logprobs=True)),
    (CHAT, chat("w5 w6", max_tokens=24, mode="speculative", mrp_steps=2, seed=2)),
    (COMPLETIONS, completion(max_tokens=24, mode="remask", seed=2, threshold=0.3, logprobs=1, return_trace=True)),
    (COMPLETIONS, completion(prompt=["w1 w2 w3", "w4"], echo=True, max_tokens=24, mode="static", temperature=0.9)),
    (RESPONSES, response(max_output_tokens=30, temperature=0.9, ignore_eos=True)),
    (MESSAGES, message(max_tokens=24, mode="static", temperature=0.9, seed=4, ignore_eos=True)),
    (MESSAGES, message("w5 w6", max_tokens=24, mode="speculative", mrp_steps=2, seed=2, return_trace=True)),
    (MESSAGES, message(" ".join(["w5"] * 2020), max_tokens=9000, mode="static", seed=1, ignore_eos=True)),
]
ADDING: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "add"}}
ADDING["tools"] = [{"name": "add", "input_schema": TOOLS[0]["function"]["parameters"]}]
CONTINUED_CALLS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat("12+5", max_tokens=120, tools=TOOLS, tool_choice=NAMED, temperature=1, seed=3, mode="static")),
    (CHAT, chat("12+5", max_tokens=120, tools=TOOLS, temperature=1, seed=1, mode="speculative", mrp_steps=2)),
    (MESSAGES, message("add 1", max_tokens=120, mode="static", seed=2, **ADDING)),
]


@pytest.mark.parametrize(("path", "body"), CONTINUED)
async def test_a_stream_and_an_answer_continue_on_another_replica(generator, other, path, body):
    await assert_continues(generator, other, path, {"seed": 1} | body)


@pytest.mark.parametrize(("path", "body"), CONTINUED_CALLS)
async def test_a_stream_with_calls_continues_on_another_replica(callers, path, body):
    await assert_continues(*callers, path, body)


async def assert_continues(first: Replica, other: Replica, path: str, body: dict[str, Any]) -> None:
    """Loses the first replica after some blocks. The client gets what an undisturbed replica answers."""
    streamed = body | ({"stream_options": {"include_usage": True}} if path in {COMPLETIONS, CHAT} else {})
    async with over(other) as http:
        undisturbed = by_choice(essence(await stream_events(http, path, streamed)))
        whole = essence(await ask(http, path, body))
    for after in (1, 2):
        async with over(LosesFirst(first, other, after)) as http:
            assert by_choice(essence(await stream_events(http, path, streamed))) == undisturbed, after
            assert (await page(http))("mrp_request_failovers_total") == 1
    async with over(LosesFirst(first, other, 0)) as http:
        assert essence(await ask(http, path, body)) == whole


# --- thinking and calls ----------------------------------------------------------------------------

TEXT = "<think>\nhm\n</think>\n\nWell.\n" + TOOL_FORMATS["qwen3"].written(("add", '{"a": 1}'), ("now", "{}"))
QWEN3_CARD = replace(CARD, tool_format="qwen3", tools_problem="", thinking=ReasoningFormat(False, True))
CALLS = {path: {"tools": TOOLS} for path in (CHAT,)}
CALLS[RESPONSES] = {"tools": [{"type": "function", "name": name} for name in ("add", "now")]}
CALLS[MESSAGES] = {
    "tools": [{"name": name, "input_schema": {}} for name in ("add", "now")],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}


def parts(path: str, answer: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
    """The thinking, the text and the calls of a message, a response's output or a choice."""
    if path == CHAT:
        calls = [call["function"] for call in answer["tool_calls"]]
        names_and_arguments = [(call["name"], json.loads(call["arguments"])) for call in calls]
        return answer["reasoning_content"], answer["content"], names_and_arguments
    if path == RESPONSES:
        thinking, text, *calls = answer["output"]
        texts = [item["content"][0]["text"] for item in (thinking, text)]
        return texts[0], texts[1], [(call["name"], json.loads(call["arguments"])) for call in calls]
    thinking, text, *calls = answer["content"]
    return thinking["thinking"], text["text"], [(call["name"], call["input"]) for call in calls]


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("size", [1, 3, 11, 1000])
async def test_thinking_text_and_calls_are_the_same_for_blocks_of_any_size(path, size):
    texts = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    items = [chunk(number, text) for number, text in enumerate(texts)]
    async with over(Scripted(*items, ending("stop"), serves=QWEN3_CARD)) as http:
        body = BODIES[path](**CALLS[path])
        whole, events = await ask(http, path, body), await stream_events(http, path, body)
    if path == CHAT:
        [choice] = whole["choices"]
        assert choice["finish_reason"] == events[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert [token for part in choices(events) for token in part.get("token_ids", ())] == [1] * len(texts)
        whole, streamed = choice["message"], chat_message(events)
    elif path == RESPONSES:
        streamed = events[-1]["response"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert (done, whole["status"]) == (streamed["output"], "completed")
    else:
        streamed = whole_message(events)
        assert whole["stop_reason"] == "tool_use"
    for answer in (whole, streamed):
        assert parts(path, answer) == ("hm", "Well.", [("add", {"a": 1}), ("now", {})])


async def test_a_call_that_was_cut_has_the_arguments_so_far():
    backend = Scripted(serves=QWEN3_CARD)
    async with over(backend) as http:
        for length in range(0, len(TEXT) - 1, 3):
            backend.items = (chunk(0, TEXT[:length]), ending("length"))
            answer = await ask(http, MESSAGES, message(**CALLS[MESSAGES]))
            assert all(isinstance(block.get("input", {}), dict) for block in answer["content"])
            assert answer["stop_reason"] != "tool_use"


# --- refusals --------------------------------------------------------------------------------------

ADD = {"type": "function", "name": "add"}
#: fields of a body, the parameter that the refusal names, and a part of its message
REFUSALS: dict[str, list[tuple[dict[str, Any], str, str]]] = {
    COMPLETIONS: [
        ({"suffix": "w1"}, "suffix", "not served"),
        ({"tools": [{"type": "function"}]}, "tools", "not served"),
        ({"max_new_tokens": 1}, "max_new_tokens", "use 'max_tokens'"),
        ({"messages": []}, "messages", "use 'prompt'"),
        ({"temperature": 2.01}, "temperature", "temperature is 2.01: Input should be less than or equal to 2"),
        ({"n": 64, "prompt": [[5], [6], [7]]}, "n", "192 answers, allowed are 128"),
        ({"prompt": [5] * 2048}, "max_tokens", "2048 prompt tokens and max_tokens 1 are 2049"),
        ({"prompt": [509]}, "prompt", "prompt has the mask token"),
        ({"prompt": [[509], [509]], "stream": True}, "prompt", "prompt has the mask token"),
        ({"prompt": []}, "prompt", "a text, token ids, or a list"),
        ({"prompt": ""}, "prompt", 'prompt is ""'),
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"model": None}, "model", "model is missing"),
        ({"echo": True}, "echo", "prompts that are texts"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "need stream true"),
        ({"logprobs": 21}, "logprobs", "equal to 20"),
        ({"prompt": "w5", "logprobs": 0, "echo": True}, "echo", "echo is true"),
    ],
    CHAT: [
        ({"tools": [{"type": "function"}]}, "tools.0.function", "tools.0.function is"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"stop_sequences": ["w1"]}, "stop_sequences", "use 'stop'"),
        ({"functions": [{"name": "add"}]}, "functions", "use 'tools'"),
        ({"max_completion_tokens": 3}, "max_tokens", "16 and max_completion_tokens 3"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "equal to 20"),
        ({"top_logprobs": 1}, "top_logprobs", "needs logprobs"),
        ({"messages": [{"role": "tool", "content": "w5"}]}, "messages.0", "tool_call_id is missing"),
        ({"messages": user([{"type": "image_url", "image_url": {}}])}, "messages.0", "this model reads text"),
        ({"messages": user([{"type": "text", "text": 1}])}, "messages.0", "a text or a list of parts is expected"),
        ({"messages": ["w5"]}, "messages.0", 'messages.0 is "w5"'),
        ({"guided_json": "{"}, "guided_json", ""),
        ({"structured_outputs": 1}, "structured_outputs", ""),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag", ""),
        ({"structured_outputs": {"structural_tag": "{}"}}, "response_format.format.triggers", ""),
        ({"response_format": {"type": "structural_tag", "format": {"type": "x"}}}, "response_format.format", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", ""),
        ({"response_format": {"type": "regex", "value": "a"}, "regex": "a"}, "response_format", ""),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "structured_outputs.regex", ""),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json", ""),
    ],
    RESPONSES: [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "no response is stored"),
        ({"conversation": "c"}, "conversation", "use 'input'"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0", "set `store: false` in the client"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"type": "reasoning", "id": "a", "summary": []}]}, "input", "no message"),
        ({"input": user([{"type": "input_image"}])}, "input.0.content.0", "reads text only"),
        ({"input": user([{"type": "input_text"}])}, "input.0.message.content", "part 0 is none"),
        ({"tools": [ADD]}, "tools", "tools are given, and"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.json_schema.schema", "is missing"),
        ({"max_tokens": 5}, "max_tokens", "use 'max_output_tokens'"),
    ],
    MESSAGES: [
        ({"max_tokens": None}, "max_tokens", "max_tokens is missing"),
        ({"temperature": 1.1}, "temperature", "temperature is 1.1: Input should be less than or equal to 1"),
        ({"stop": "w1"}, "stop", "use 'stop_sequences'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no tools"),
        ({"tool_choice": {"type": "some"}}, "tool_choice", "expected tags"),
        ({"tools": [{"name": "add", "input_schema": {}}]}, "tools", "tools are given, and"),
        ({"mcp_servers": [{}]}, "mcp_servers", "not served"),
        ({"messages": [{"role": "tool", "content": "w5"}]}, "messages.0.role", "role"),
        ({"messages": [{"role": "assistant", "content": "w5"}]}, "messages.0.role", "end with a user's message"),
        ({"messages": user([{"type": "image"}])}, "messages.0.content.0", "the type image, and this model reads text"),
        ({"messages": user([{"text": "w5"}])}, "messages.0.content.0", "extract tag"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "json_schema"),
    ],
}


@pytest.mark.parametrize(
    ("path", "fields", "param", "text"), [(path, *row) for path, rows in REFUSALS.items() for row in rows]
)
async def test_a_refusal_names_the_field(http, path, fields, param, text):
    error = await refused(http, path, BODIES[path](**fields))
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param or error["param"].startswith(f"{param}.")
    assert text in error["message"]


@each_api
async def test_an_unknown_model_is_404_naming_the_served_one(http, api):
    error = await refused(http, api.path, api.body(model="gpt-4"), 404)
    assert error["message"] == "model is 'gpt-4', served is 'golden'"
    assert (error["param"], error["code"]) == ("model", "unknown_model")
    assert api.path == GENERATE or error["type"] == "not_found_error"


@each_foreign_api
async def test_a_key_is_required(generator, api):
    async with over(generator, api_keys=("right",)) as http:
        error = await refused(http, api.path, api.body(), 401)
        assert (error["type"], error["code"]) == ("authentication_error", "unauthorized")
        for headers in ({"x-api-key": "right"}, {"Authorization": "Bearer right"}):
            assert (await http.post(api.path, json=api.body(**{api.limit: 1}), headers=headers)).status_code == 200


async def test_bodies_that_are_no_json_object_or_too_large(http):
    for content, status in ((b"{", 400), (b"[]", 400), (b'{"prompt": "' + b"w" * 2**20 + b'"}', 413)):
        answer = await http.post(COMPLETIONS, content=content)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nope", 404, "not_found_error"),
        ("GET", COMPLETIONS, 405, "invalid_request_error"),
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("PUT", "/v1/models", 405, "invalid_request_error"),
        ("GET", "/nope", 404, None),
    ],
)
async def test_errors_of_the_router_have_a_type_below_v1(http, method, path, status, kind):
    answer = await http.request(method, path)
    assert (answer.status_code, answer.json()["error"].get("type")) == (status, kind)


# --- limits ----------------------------------------------------------------------------------------


@each_api
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_is_refused_in_the_words_of_its_api(http, api, stream):
    error = await refused(http, api.path, api.body(" ".join(["w5"] * 2100), stream=stream))
    if api.path == MESSAGES:
        assert error["message"].startswith("prompt is too long: ")
        assert error["message"].endswith("the prompt is too long: it has 2103 tokens, and an answer has at least one.")
    else:
        assert error["message"].startswith("This model's maximum context length is 2048 tokens. However, ")
    code = "context_length_exceeded" if api.path in {CHAT, COMPLETIONS, RESPONSES} else "prompt_too_long"
    assert error["code"] == code
    assert api.path == GENERATE or error["param"] == next(iter(api.prompt("")))


@pytest.mark.parametrize(("tokens", "limit", "output"), [(1, None, 37), (1, 3, 3), (2000, 10**9, None)])
@each_foreign_api
async def test_a_limit_is_clipped_and_may_be_left_out(generator, api, tokens, limit, output):
    if api.path == MESSAGES and limit is None:
        limit = 37  # Anthropic's field is required
    if api.path == COMPLETIONS and limit is None:
        output = 16  # OpenAI's default
    body = api.body(" ".join(["w5"] * tokens), mode="static", ignore_eos=True, **{api.limit: limit})
    async with over(generator, default_max_tokens=37) as http:
        usage = (await ask(http, api.path, body))["usage"]
    prompt = tokens if api.path == COMPLETIONS else tokens + 3
    assert usage.get("completion_tokens", usage.get("output_tokens")) == (output or 2048 - prompt)


async def test_generates_limit_is_not_clipped(generator):
    async with over(generator, default_max_tokens=37) as http:
        body = {"prompt_token_ids": [5], "ignore_eos": True}
        assert (await ask(http, GENERATE, body))["usage"]["completion_tokens"] == 37
        assert (await refused(http, GENERATE, body | {"max_new_tokens": 2048}))["code"] == "prompt_too_long"
        body = completion(prompt=[5] * 2040, max_tokens=None, ignore_eos=True)
        assert (await ask(http, COMPLETIONS, body))["usage"]["completion_tokens"] == 8


# --- errors of replicas ----------------------------------------------------------------------------


@each_foreign_api
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (QueueFull("full", retry_after=2.5), ("rate_limit_error", "rate_limit_error")),
        (NotReady("drains", retry_after=5.0), ("server_error", "overloaded_error")),
        (DeadlineExceeded("too late"), ("server_error", "timeout_error")),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
async def test_an_error_before_the_first_block_has_its_status(api, error, kinds, stream):
    several = {"n": 4} if api.path in {COMPLETIONS, CHAT} else {}
    backend = Scripted(Failure(error))
    async with over(backend) as http:
        answer = await http.post(api.path, json=api.body(stream=stream, **several))
    assert (answer.status_code, answer.json()["error"]["type"]) == (error.status, kinds[api.path == MESSAGES])
    assert answer.headers.get("retry-after") == {2.5: "3", 5.0: "5", None: None}[error.retry_after]
    assert backend.live == 0


@each_api
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failure(NotReady("the replica was lost")), "not_ready"),
        (NotReady("the replica was lost"), "not_ready"),
        (ZeroDivisionError("secret"), "internal_error"),
    ],
    ids=["failure", "error", "bug"],
)
async def test_an_error_in_the_midst_is_the_last_event_and_counted(api, error, code):
    several = {"n": 3} if api.path in {COMPLETIONS, CHAT} else {}
    backend = Scripted(chunk(), error)
    async with over(backend) as http:
        answer = await http.post(api.path, json=api.body(stream=True, **several))
        metrics = await page(http)
    *before, last = read_events(api.path, answer.text)
    assert before
    assert not any("error" in event or event.get("type") == "error" for event in before)
    detail = last.get("error", last)
    assert detail["code"] == code
    assert code == "internal_error" or detail["message"] == "the replica was lost"
    assert answer.headers["x-request-id"] in json.dumps(last)
    assert "secret" not in answer.text
    assert metrics("mrp_request_rejected_total", reason=code, replica="i0") == 1
    assert backend.live == 0


async def test_a_time_out_has_the_apis_reason_and_ours():
    async with over(Scripted(chunk(), ending("timeout"))) as http:
        [choice] = (await ask(http, CHAT, chat()))["choices"]
        [*_, last] = (await stream_events(http, CHAT, chat()))[-1]["choices"]
        for part in (choice, last):
            assert (part["finish_reason"], part["stats"]["finish_reason"]) == ("length", "timeout")
        answer = await ask(http, MESSAGES, message())
        assert (answer["stop_reason"], answer["stats"]["finish_reason"]) == ("max_tokens", "timeout")
        answer = await ask(http, RESPONSES, response())
        assert (answer["status"], answer["stats"]["finish_reason"]) == ("incomplete", "timeout")


async def test_an_answer_of_no_token():
    async with over(Scripted(Ending("stop", 3, 0, Stats()))) as http:
        answer = await ask(http, MESSAGES, message())
        assert (answer["content"], answer["stop_reason"]) == ([], "end_turn")
        assert whole_message(await stream_events(http, MESSAGES, message()))["content"] == []
        opening, closing = (event["choices"][0] for event in await stream_events(http, CHAT, chat()))
        assert (opening["delta"]["role"], closing["delta"], closing["finish_reason"]) == ("assistant", {}, "stop")


# --- other APIs' fields ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_documentation_has_the_routes_and_their_fields(http, path):
    paths = (await http.get("/openapi.json")).json()["paths"]
    schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "n", "max_tokens", "stream_options", "seed", "threshold", "mode"} <= set(schema["properties"])
    assert "$ref" not in str(schema)
    assert schema["properties"]["temperature"]["maximum"] == 2


async def test_tokens_are_counted_as_an_answer_counts_them(http):
    system = [{"type": "text", "text": "w9", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "w8"}]
    body = message("w5 w6 w7", system=system)
    count = await ask(http, COUNT, {name: body[name] for name in ("model", "messages", "system")})
    assert count.keys() == {"input_tokens"}
    assert count["input_tokens"] == essence((await ask(http, MESSAGES, body))["usage"])["prompt"]
    assert await ask(http, COUNT, body | {"thinking": {"type": "adaptive"}, "tools": [], "quite_new": 1}) == count
    assert (await refused(http, COUNT, message(model="other"), 404))["type"] == "not_found_error"
    for fields, param in (({"messages": []}, "messages"), ({"priority": 10}, "priority")):
        assert (await refused(http, COUNT, message(**fields)))["param"] == param
