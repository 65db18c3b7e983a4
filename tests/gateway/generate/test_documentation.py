"""The OpenAPI schema: complete, with examples that work, and in step with what is parsed and answered."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from service.api.answers import BlockFrame, Done, GenerateAnswer, StepFrame
from service.api.generate import EXAMPLES
from service.api.parse import parse_generate
from service.api.protocol import KNOBS, GenerateBody
from service.decode.modes import MODES
from service.quality.schema import QUALITIES
from tests.gateway.doubles import Scripted
from tests.gateway.generate.helpers import GENERATE, body, refused
from tests.gateway.helpers import over

NAMES = {
    "static": {"tokens_per_step"},
    "dynamic": {"threshold"},
    "sequential": {"tokens_per_step", "entropy_bound"},
    "entropy": {"entropy_bound"},
    "direct": {"mrp_steps", "threshold"},
    "speculative": {
        "mrp_steps",
        "max_drafts",
        "tokens_per_step",
        "threshold",
        "entropy_bound",
        "verify",
        "margin",
        "prompt_lookup_num_tokens",
    },
    "remask": {"threshold"},
    "edit": {"threshold", "edit_threshold", "max_post_edit_steps"},
}


@pytest.fixture
async def schema(http: httpx.AsyncClient) -> dict[str, Any]:
    schema: dict[str, Any] = (await http.get("/openapi.json")).json()
    return schema


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_every_reference_leads_somewhere(schema):
    schemas = {f"#/components/schemas/{name}" for name in schema["components"]["schemas"]}
    assert set(references(schema)) <= schemas


def test_a_mode_has_its_knobs_and_a_quality_none(schema):
    wanted = schema["paths"][GENERATE]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert wanted["additionalProperties"] is False
    assert "required" not in wanted
    valid = jsonschema.Draft202012Validator(wanted).is_valid
    for mode in (*MODES, None):
        for knob in KNOBS:
            value = KNOBS[knob].choices[0] if KNOBS[knob].choices else 1
            assert valid({"prompt": "w1", "mode": mode, knob: value}) == (mode is None or knob in NAMES[mode])
            assert not valid({"prompt": "w1", "quality": "fast", knob: value})
        assert valid({"prompt": "w1", "mode": mode, "quality": "fast"}) == (mode is None)


def test_errors_and_frames_are_there(schema):
    answers = schema["paths"][GENERATE]["post"]["responses"]
    assert {"200", "401", "404", "413", "422", "429", "503", "504"} <= answers.keys()
    assert "text/event-stream" in answers["200"]["content"]
    for model in (GenerateAnswer, BlockFrame, StepFrame, Done):
        assert schema["components"]["schemas"][model.__name__]["properties"].keys() == model.__annotations__.keys()
    for status in ("422", "503"):
        assert answers[status]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorAnswer")


async def test_another_applications_page_is_the_same(schema):
    """All applications share the documentation of bodies, so no application may change it."""
    async with over(Scripted()) as http:
        assert (await http.get("/openapi.json")).json() == schema


async def test_the_page_needs_nothing_from_elsewhere(http):
    page = await http.get("/docs")
    assert page.status_code == 200
    assert "text/html" in page.headers["content-type"]
    assert not re.search(r"""["'(](?:https?:)?//""", page.text)
    assets = re.findall(r"""(?:href|src)=["']([^"']+)""", page.text)
    assert {asset.rpartition(".")[2] for asset in assets} == {"css", "js", "png"}
    for asset in [*assets, "/openapi.json"]:
        answer = await http.get(asset)
        assert answer.status_code == 200, asset
        assert answer.content
    assert (await http.get("/docs/static/nope.js")).json()["error"]["code"] == "not_found"
    assert (await http.get("/redoc")).status_code == 404  # FastAPI's own, from elsewhere


def test_examples_are_of_the_schema(schema):
    wanted = schema["paths"][GENERATE]["post"]["requestBody"]["content"]["application/json"]
    validator = jsonschema.Draft202012Validator({**wanted["schema"], "components": schema["components"]})
    for example in wanted["examples"].values():
        validator.validate(example["value"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_requests(schema, name):
    example = schema["paths"][GENERATE]["post"]["requestBody"]["content"]["application/json"]["examples"][name]
    assert example["summary"]
    request = parse_generate(example["value"], "speculative", GenerateBody)
    assert request.quality in {*QUALITIES, None}


async def test_the_fields_are_those_of_the_contract():
    names = """model quality mode prompt prompt_token_ids messages max_new_tokens max_tokens n stream stream_steps
        timeout_s priority temperature top_p top_k min_p seed repetition_penalty frequency_penalty presence_penalty
        logit_bias
        bad_words min_tokens stop stop_token_ids ignore_eos return_trace return_step_map cache_salt prompt_cache_key
        response_format regex choice grammar"""
    fields = set(names.split())
    assert GenerateBody.model_fields.keys() - KNOBS.keys() == fields
    async with over(Scripted()) as http:
        assert "is not a field" in (await refused(http, body(best_of=1)))["message"]
