"""Fields that are not served: ignored and named, or refused by the header `x-strict-fields`."""

import json
import logging
from typing import Any

import httpx
import pytest

from service.api.fields import NEUTRAL, RELIED, IgnoredFields
from tests.gateway.apis import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, ask, chat, refused, user
from tests.gateway.helpers import over

USER = user("w5")
BODIES = {api.path: api.body("w5", **{api.limit: 2}) for api in APIS[1:]}
TOOL = {"type": "function", "function": {"name": "add"}}
STRICT = {"x-strict-fields": "true"}


async def ignored(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str | None:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.headers.get("x-ignored-fields")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_field_is_named(http, path, stream):
    body = BODIES[path] | {"stream": stream}
    assert await ignored(http, path, body) is None
    assert await ignored(http, path, body | {"quite_new": {"a": 1}, "temprature": 1}) == "quite_new, temprature"


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (COMPLETIONS, {"length_penalty": 0.5}, "length_penalty"),
        (COMPLETIONS, {"best_of": 3}, "best_of"),
        (COMPLETIONS, {"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        (CHAT, {"store": True, "verbosity": "low"}, "store, verbosity"),
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {"tools": [{"type": "custom", "custom": {}}]}, "tools.custom"),
        (CHAT, {"tools": [{**TOOL, "nmae": 1}], "tool_choice": "none"}, "tools.nmae"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools.web_search"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        (RESPONSES, {"input": [*USER, {"type": "web_search_call", "id": "a"}]}, "input.web_search_call"),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.bash_20250124"),
        (MESSAGES, {"messages": [{**USER[0], "id": "a"}]}, "messages.id"),
        (CHAT, {"nvext": {"annotations": ["a"], "top_k": 3}}, "nvext.annotations, nvext.top_k"),
    ],
)
async def test_a_field_that_is_not_served_is_named_or_refused(http, path, fields, named):
    assert await ignored(http, path, BODIES[path] | fields) == named
    response = await http.post(path, json=BODIES[path] | fields, headers=STRICT)
    if "effort" in named:  # it is served, only this checkpoint does not think
        assert response.status_code == 200
    else:
        assert response.status_code == 400
        param = response.json()["error"]["param"]
        assert param.partition(".")[0] == named.partition(", ")[0].partition(".")[0]


@pytest.mark.parametrize("path", BODIES)
async def test_a_field_that_changes_the_answer_is_refused(http, path):
    """In every API, unless its value asks for nothing."""
    for name in RELIED:
        error = await refused(http, path, BODIES[path] | {name: ["a"]})
        assert error["param"] == name
    for neutral in (dict.fromkeys(RELIED), {name: values[-1] for name, values in NEUTRAL.items()}):
        assert await ignored(http, path, BODIES[path] | neutral) is None
    error = await refused(http, path, BODIES[path] | {"truncate_prompt_tokens": 5})
    assert error["message"] == "truncate_prompt_tokens is 5, which is not served; allowed is -1 or null"


async def test_the_beginning_of_an_answer_is_refused(http):
    turns = [*USER, {"role": "assistant", "content": "w6", "prefix": True}]
    assert (await refused(http, CHAT, BODIES[CHAT] | {"messages": turns}))["param"] == "messages.1.prefix"
    assert await ignored(http, CHAT, BODIES[CHAT] | {"messages": [*turns, *USER]}) is None


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
async def test_a_message_without_a_content_is_empty_on_every_route(http, path, role):
    name = "input" if path == RESPONSES else "messages"
    usages = []
    for message in ({"role": role, "content": None}, {"role": role}, {"role": role, "content": ""}):
        answer = await ask(http, path, BODIES[path] | {name: [*USER, message, *USER]})
        usages.append({key: count for key, count in answer["usage"].items() if isinstance(count, int)})
    assert len({sum(usage.values()) for usage in usages}) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temprature": 1}, "'temprature' is not a field of this route; did you mean 'temperature'?"),
        *(({name: 1}, f"{name!r} is not a field of this route") for name in ("provider", "structured", "keep_alive")),
        ({"typical_p": 0.1}, "typical_p is 0.1, which is not served; allowed is 1 or null"),
    ],
)
async def test_a_hint_names_a_field_that_helps_or_none(http, fields, message):
    http.headers.update(STRICT)
    assert (await refused(http, CHAT, chat(**fields)))["message"] == message


async def test_a_client_cannot_forge_the_header_or_the_log(http, caplog):
    names = ("a\r\nset-cookie: b=c", "sk-live-0123", "x" * 49, "é", "", " ", "a,b", "tell me: who am I?", "a.b.c.d.e")
    with caplog.at_level(logging.WARNING):
        assert await ignored(http, CHAT, BODIES[CHAT] | dict.fromkeys(names, 1)) == "other"
        many = await ignored(http, CHAT, BODIES[CHAT] | {f"field_{number}": 1 for number in range(500)})
    assert many is not None
    assert many.split(", ") == [f"field_{number}" for number in range(32)] + ["other"]
    assert not any(name in caplog.text for name in names if len(name) > 2)


def test_the_log_names_each_field_once_and_at_most_256_fields(caplog):
    logged = set[str]()
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            fields = IgnoredFields(logged=logged)
            fields.add("min_p")
            fields.add(f"field_{number}")
    assert len(caplog.records) == 256
    assert [record.message for record in caplog.records if "min_p" in record.message] == [
        "requests have the field min_p, which is not served and is ignored"
    ]


async def test_a_model_has_several_names_or_any(make_generator):
    names = ("golden", "gpt-4o", "*")
    async with over(make_generator(served_model_name=names)) as http:
        for name in ("golden", "gpt-4o", "claude-haiku-4-5"):
            assert (await ask(http, CHAT, chat(max_tokens=2, model=name)))["model"] == "golden"
            assert (await http.get(f"/v1/models/{name}")).json()["id"] == name
        listed = (await http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["golden", "gpt-4o"]
    assert {model["root"] for model in listed["data"]} == {"golden"}
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("golden", "gpt-4o", False)
    assert listed["models"] == []
    for model in listed["data"]:
        assert (model["object"], model["type"], model["display_name"]) == ("model", "model", model["id"])
        assert model["created"] > 1.5e9
        assert model["created_at"].startswith("20")
    async with over(make_generator(served_model_name=names[:2])) as http:
        error = await refused(http, CHAT, chat(model="other"), 404)
        assert error["message"] == "model is 'other', served is 'golden' or 'gpt-4o'"


async def test_a_history_that_no_client_can_repair(http):
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "w5", "name": "me", "tool_calls": [], "reasoning_content": None},
        {"role": "assistant", "content": None, "reasoning": "w6", "reasoning_details": [{}], "status": "done"},
        {"role": "user", "content": [], "id": "m1"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "w7"}, {"type": "thinking", "thinking": "x"}]},
    ]
    plain = [
        {"role": "user", "content": "w5"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "w7"},
    ]
    answers = [await ask(http, CHAT, chat(mode="static") | {"messages": [*turns, *USER]}) for turns in (history, plain)]
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
    assert answers[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]


SCHEMA = {"enum": ["no", "yes"]}
TAG = {"type": "tag", "begin": "", "content": {"type": "regex", "pattern": "no|yes"}, "end": ""}


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["no", "yes"]},
        {"nvext": {"guided_choice": ["no", "yes"], "guided_regex": None}},
        {"nvext": {"guided_json": SCHEMA}},
        {"structured_outputs": {"choice": ["no", "yes"], "disable_any_whitespace": False}},
        {"guided_regex": "no|yes"},
        {"structured_outputs": {"regex": "no|yes"}},
        {"guided_grammar": 'start: "no" | "yes"'},
        {"ebnf": 'root ::= "no" | "yes"'},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": json.dumps(SCHEMA), "strict": True}},
        {"response_format": {"type": "json", "value": SCHEMA}},
        {"response_format": {"type": "regex", "value": "no|yes"}},
        {"response_format": {"type": "regex", "pattern": "no|yes"}},
        {"response_format": {"type": "regex_schema", "regex_schema": "no|yes"}},
        {"response_format": {"type": "grammar", "grammar": 'root ::= "no" | "yes"'}},
        {"response_format": {"type": "structural_tag", "format": TAG}},
        {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": TAG})}},
    ],
)
async def test_constraints_of_other_names_hold(caller, fields):
    sent = {"max_tokens": 64, **fields}
    async with over(caller) as http:
        [choice] = (await ask(http, CHAT, BODIES[CHAT] | sent | {"reasoning_effort": "none"}))["choices"]
        assert (choice["message"]["content"].strip('"'), choice["constraint_met"]) in {("no", True), ("yes", True)}
        [choice] = (await ask(http, COMPLETIONS, BODIES[COMPLETIONS] | sent | {"prompt": "w5"}))["choices"]
        assert (choice["text"].strip('"'), choice["constraint_met"]) in {("no", True), ("yes", True)}


async def test_the_older_structural_tag_holds(caller):
    tag = {"begin": "<f>", "schema": {"enum": ["no", "yes"]}, "end": "</f>"}
    form = {"type": "structural_tag", "structures": [tag], "triggers": ["<f"]}
    base = BODIES[CHAT] | {"max_tokens": 64, "reasoning_effort": "none", "response_format": form}
    async with over(caller) as http:
        for seed in range(3):
            [choice] = (await ask(http, CHAT, base | {"temperature": 1, "seed": seed}))["choices"]
            for part in choice["message"]["content"].split("<f")[1:]:
                assert '>"no"</f>'.startswith(part[:10]) or '>"yes"</f>'.startswith(part[:11])
