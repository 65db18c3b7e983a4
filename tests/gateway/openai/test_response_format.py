"""Structured outputs as OpenAI's own client asks for them, unmodified."""

import itertools
import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.gateway.conftest import openai_client
from tests.gateway.helpers import application

MESSAGES: Any = [{"role": "user", "content": "How many apples does Tom have?"}]


class Apples(BaseModel):
    who: Literal["Tom", "Ann"]
    count: int = Field(ge=0, le=99)
    ripe: bool | None


@pytest.fixture
async def client(bytewise):
    async with openai_client(application(bytewise)) as client:
        yield client


async def test_a_class_is_parsed(client):
    answer = await client.chat.completions.parse(model="golden", messages=MESSAGES, response_format=Apples)
    [choice] = answer.choices
    assert isinstance(choice.message.parsed, Apples)
    assert choice.finish_reason == "stop"
    assert (choice.model_extra or {})["constraint_met"] is True


async def test_a_strict_schema_that_is_not_supported_is_a_bad_request(client):
    schema = {"type": "array", "items": {"type": "array", "uniqueItems": True, "items": {"const": 1}, "maxItems": 2}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="golden", messages=MESSAGES, response_format=form, stream=stream)
        assert caught.value.param == "response_format.json_schema.schema"
        assert "items.uniqueItems is not supported in a strict schema" in caught.value.message
    del form["json_schema"]["strict"]
    answer = await client.chat.completions.create(model="golden", messages=MESSAGES, response_format=form)
    assert set(itertools.chain(*json.loads(str(answer.choices[0].message.content)))) <= {1}
    assert json.loads(caught.value.response.text)["error"]["type"] == "invalid_request_error"
