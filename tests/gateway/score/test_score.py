"""POST /v1/score: positions, labels, chats and marks, against a plain forward; refusals, and a lost replica."""

import asyncio
import math
from typing import Any

import httpx
import pytest
import torch

from service.api.errors import OpenAiErrorAnswer
from service.api.score.protocol import ScoreAnswer
from service.api.score.routes import shares
from service.model import Checkpoint
from tests.gateway.doubles import LosesFirst
from tests.gateway.generate.helpers import GENERATE
from tests.gateway.generate.helpers import body as generate
from tests.gateway.helpers import assert_shape, over, page
from tests.reference import block_causal_mask, dense_attention

SCORE = "/v1/score"


def body(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "golden", "items": list(items) or [{"prompt": "w5 w6"}], "labels": ["w7", "w8"]} | fields


async def ask(http: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(SCORE, json=request)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert_shape(ScoreAnswer, answer)
    return answer


@torch.inference_mode()
def plain(model: Checkpoint, tokens: list[int | None]) -> torch.Tensor:
    """Log-probabilities of one forward over a text whose None are masks, and so is the rest of its last block."""
    size, mask = model.config.block_size, model.config.mask_token_id
    length = -(-len(tokens) // size) * size
    ids = [mask if token is None else token for token in tokens] + [mask] * (length - len(tokens))
    attend = dense_attention(block_causal_mask(length, size))
    hidden = model.backbone(torch.tensor([ids]), torch.arange(length)[None], attend, False)
    scores: torch.Tensor = model.backbone.logits(hidden[0]).float().log_softmax(-1)
    return scores


async def test_every_form_of_a_text_has_the_numbers_of_a_plain_forward(http, checkpoint):
    """Texts, marked texts, ids and chats in one request, beside answers that are decoded."""
    items: list[tuple[dict[str, Any], list[int | None]]] = [
        ({"prompt": "w5 w6"}, [5, 6, None]),
        ({"prompt": "w5 ?? w6 ?? w9", "mark": "??"}, [5, None, 6, None, 9]),
        ({"prompt": "?? w6", "mark": "??"}, [None, 6]),
        ({"prompt_token_ids": [5, None, 9, 10, 11, 12, 13, 14, 15, None]}, [5, None, *range(9, 16), None]),
        ({"prompt_token_ids": [5, 6], "label_token_ids": [9, 10]}, [5, 6, None]),
    ]
    decoded = asyncio.gather(*(http.post(GENERATE, json=generate(max_new_tokens=40)) for _ in range(3)))
    answer = await ask(http, body(*(item for item, _ in items), top_logprobs=5))
    assert all(response.status_code == 200 for response in await decoded)
    assert [result["index"] for result in answer["data"]] == list(range(5))
    for (item, tokens), result in zip(items, answer["data"], strict=True):
        scores = plain(checkpoint, tokens)
        assert [position["position"] for position in result["positions"]] == [
            p for p, token in enumerate(tokens) if token is None
        ]
        for position in result["positions"]:
            logprobs = scores[position["position"]]
            labels = item.get("label_token_ids", [7, 8])
            assert position["token_ids"] == labels
            assert position["logprobs"] == pytest.approx(logprobs[labels].tolist(), abs=1e-4)
            assert sum(position["scores"]) == pytest.approx(1)
            assert position["scores"][0] / position["scores"][1] == pytest.approx(
                math.exp(position["logprobs"][0] - position["logprobs"][1])
            )
            best = logprobs.topk(6)
            wanted = [token for token in best.indices.tolist() if token != checkpoint.config.mask_token_id][:5]
            assert [top["token_id"] for top in position["top_logprobs"]] == wanted
            assert [top["token"] for top in position["top_logprobs"]] == [f"w{token}" for token in wanted]
    count = sum(token is not None for _, tokens in items for token in tokens)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (count, 0)


async def test_a_position_of_a_chat_is_the_answers_first_token_or_a_mark(http):
    """The first position is what greedy decoding of one token reads."""
    messages = [{"role": "user", "content": "w5 w6"}]
    request = body({"messages": messages}, labels=None, top_logprobs=1)
    [position] = (await ask(http, request))["data"][0]["positions"]
    sequential = {"messages": messages, "mode": "sequential", "max_new_tokens": 1, "ignore_eos": True}
    decoded = (await http.post(GENERATE, json=sequential)).json()
    assert [position["top_logprobs"][0]["token_id"]] == decoded["token_ids"]
    assert (position["scores"], position["logprobs"], position["token_ids"]) == ([], [], [])
    marked = [*messages, {"role": "assistant", "content": "w7 w1 w1"}]
    [result] = (await ask(http, body({"messages": marked, "mark": "w1 w1"})))["data"]
    # w1 user w5 w6 w1 assistant w7 and the position: the template's own w1 is no mark, and no w2 follows
    assert [position["position"] for position in result["positions"]] == [7]


async def test_scores_are_shares_or_probabilities(http):
    [normal], [raw] = [
        (await ask(http, body(normalize=normalize)))["data"][0]["positions"] for normalize in (True, False)
    ]
    assert normal["logprobs"] == raw["logprobs"]
    assert raw["scores"] == pytest.approx([math.exp(logprob) for logprob in raw["logprobs"]])
    assert shares([-2000.0, -2000.0]) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("request_", "param", "text"),
    [
        (body(labels=["w7 w8"]), "items.0.labels.0", "2 tokens, allowed is one"),
        (body(labels=["w7", "w8", "w7"]), "items.0.labels.2", "labels 0 and 2 are the same token"),
        (body(labels=None, label_token_ids=[509]), "items.0.label_token_ids.0", "without the mask token 509"),
        (body(label_token_ids=[5]), "labels", "allowed is one of them"),
        (body(labels=None), "items.0.labels", "at least one of"),
        (body({"prompt": "w5"}, {"prompt": "w5", "messages": []}), "items.1.messages", "at least 1 item"),
        (body({"prompt": "w5", "prompt_token_ids": [1]}), "items.0", "exactly one of"),
        (body({"prompt": "w5"}, {"prompt": "w5", "mark": "??"}), "items.1.mark", "the text does not have"),
        (body({"prompt_token_ids": [None], "mark": "a"}), "items.0.mark", "whose positions are null"),
        (body({"prompt_token_ids": [None] * 33}), "items.0.mark", "33 marked positions, allowed are 32"),
        (body({"prompt_token_ids": [5] * 3000}), "items.0.max_new_tokens", "maximum context length is 2048"),
        (body({"prompt": "w5", "prompts": 1}), "items.0.prompts", "not a field of items.0"),
        (body(*[{"prompt": "w5"}] * 65), "items", "at most 64"),
        (body(temperature=1), "temperature", "not a field"),
        (body(lables=["a"]), "lables", "did you mean 'labels'"),
    ],
)
async def test_a_refusal_names_item_and_field(http, request_, param, text):
    response = await http.post(SCORE, json={name: value for name, value in request_.items() if value is not None})
    assert response.status_code == 400, response.text
    assert_shape(OpenAiErrorAnswer, response.json())
    assert response.json()["error"]["param"] == param
    assert text in response.json()["error"]["message"]


async def test_other_errors_keys_and_metrics(generator):
    async with over(generator, api_keys=("k",)) as http:
        assert (await http.post(SCORE, json=body())).status_code == 401
        key = {"Authorization": "Bearer k"}
        assert (await http.post(SCORE, json=body(model="x"), headers=key)).status_code == 404
        before = (await page(http))("mrp_request_success_total", mode="score", finished_reason="stop")
        assert (await http.post(SCORE, json=body(), headers=key)).status_code == 200
        assert (await page(http))("mrp_request_success_total", mode="score", finished_reason="stop") == before + 1
        late = await http.post(SCORE, json=body(timeout_s=1e-9), headers=key)
        assert late.status_code == 504


async def test_another_replica_gives_the_same_scores(generator):
    request = body({"prompt": "w5 w6"}, {"prompt": "w9 ?? w8", "mark": "??"})
    async with over(generator) as http:
        undisturbed = (await ask(http, request))["data"]
    backend = LosesFirst(generator, generator, 0)
    async with over(backend) as http:
        assert (await ask(http, request))["data"] == undisturbed
    assert len(backend.requests) == 3
