"""POST /tokenize and /detokenize: vLLM's fields, and ids that /generate takes and counts."""

import pytest

from service.api.openai.tokens import DetokenizeAnswer, TokenizeAnswer
from tests.gateway.apis import CHAT, COMPLETIONS, COUNT, PROMPT, user
from tests.gateway.generate.helpers import EOS, problem, words
from tests.gateway.helpers import assert_shape, over

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


async def post(http, path, **body):
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert_shape(TokenizeAnswer if path == TOKENIZE else DetokenizeAnswer, response.json())
    return response.json()


async def test_a_text_becomes_the_ids_that_a_completion_has(http):
    answer = await post(http, TOKENIZE, model="golden", prompt=words(PROMPT))
    assert answer == {"count": 8, "max_model_len": answer["max_model_len"], "tokens": PROMPT, "token_strs": None}
    completion = await http.post(COMPLETIONS, json={"model": "golden", "prompt": words(PROMPT), "max_tokens": 1})
    assert completion.json()["usage"]["prompt_tokens"] == answer["count"]
    [model] = (await http.get("/v1/models")).json()["data"]
    assert answer["max_model_len"] == model["max_model_len"]


async def test_a_chat_becomes_the_ids_that_its_answer_has(http):
    answer = await post(http, TOKENIZE, messages=user("w5 w6"))
    whole = {"model": "golden", "messages": user("w5 w6")}
    chat = await http.post(CHAT, json={**whole, "max_tokens": 1})
    assert chat.json()["usage"]["prompt_tokens"] == answer["count"] == len(answer["tokens"])
    assert (await http.post(COUNT, json=whole)).json() == {"input_tokens": answer["count"]}


async def test_ids_become_their_text(http):
    assert await post(http, DETOKENIZE, tokens=PROMPT) == {"prompt": words(PROMPT)}
    control = await post(http, DETOKENIZE, tokens=[5, EOS])
    assert control["prompt"].startswith("w5 <|")


async def test_fields_of_vllm_that_change_nothing_are_taken(http):
    fields = {"add_special_tokens": True, "return_token_strs": None}
    assert (await post(http, TOKENIZE, prompt="w5", **fields))["tokens"] == [5]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (TOKENIZE, {}, "none of them given, exactly one of prompt, messages is allowed"),
        (TOKENIZE, {"prompt": "w5", "messages": user()}, "prompt and messages given"),
        (TOKENIZE, {"prompt": ["w5", "w6"]}, 'prompt is ["w5", "w6"], a text is expected'),
        (TOKENIZE, {"prompt": "w5", "tools": [{}]}, "tools is [{}], which is not served; allowed is [] or null"),
        (TOKENIZE, {"messages": [{"role": "bot"}]}, "messages.0"),
        (DETOKENIZE, {}, "tokens is missing"),
        (DETOKENIZE, {"tokens": []}, "tokens is []"),
        (DETOKENIZE, {"tokens": ["5"]}, 'tokens.0 is "5"'),
        (DETOKENIZE, {"tokens": [5, -1]}, "tokens.1 is -1, allowed are 0 to"),
        (DETOKENIZE, {"tokens": [5, 10**6]}, "tokens.1 is 1000000, allowed are 0 to"),
    ],
)
async def test_a_wrong_body_is_refused(http, path, body, message):
    detail = problem(await http.post(path, json=body), 422)
    assert detail["message"].startswith(message)


@pytest.mark.parametrize(("path", "body"), [(TOKENIZE, {"prompt": "w5"}), (DETOKENIZE, {"tokens": [5]})])
async def test_they_need_a_key_and_count_in_its_limits(generator, path, body):
    async with over(generator, api_keys=("first",)) as http:
        problem(await http.post(path, json=body), 401)
        assert (await http.post(path, json=body, headers={"x-api-key": "first"})).status_code == 200


async def test_another_model_is_not_served(http):
    for path, body in ((TOKENIZE, {"prompt": "w5"}), (DETOKENIZE, {"tokens": [5]})):
        problem(await http.post(path, json={"model": "other", **body}), 404)
