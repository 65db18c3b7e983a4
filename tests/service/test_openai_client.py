"""OpenAI's own client against the real service."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.service.running import Service

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
MODEL = "sdar-mrp-random-b"
PROMPT = [5, 6, 7]


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="first", max_retries=0) as opened:
        yield opened


def test_a_completion_and_its_stream(client: openai.OpenAI) -> None:
    knobs = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "seed": 3, "n": 3, "temperature": 0.9}
    whole = client.completions.create(**knobs, logprobs=0)
    texts = [""] * 3
    usage = None
    for frame in client.completions.create(**knobs, stream=True, stream_options={"include_usage": True}):
        usage = frame.usage or usage
        for choice in frame.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert len(set(texts)) == 3
    assert usage == whole.usage
    for choice in whole.choices:
        assert len(choice.logprobs.token_logprobs) == len(choice.token_ids)
        assert max(choice.logprobs.token_logprobs) <= 0


def test_the_routes_of_other_apis(service: Service) -> None:
    """Anthropic's messages and counts, decision reads and Responses, through the ingress and a replica's process."""
    message = {"model": MODEL, "messages": [{"role": "user", "content": "w5 w6"}], "max_tokens": 8}
    with httpx.Client(base_url=service.url, headers={"x-api-key": "first"}, timeout=60) as http:
        ids = {"model": MODEL, "items": [{"prompt_token_ids": [5, None, 7]}, {"prompt_token_ids": PROMPT}]}
        answer = http.post("/v1/score", json=ids | {"label_token_ids": [8, 9], "top_logprobs": 2})
        assert answer.status_code == 200, answer.text
        assert [[position["position"] for position in row["positions"]] for row in answer.json()["data"]] == [[1], [3]]
        for path, body in (
            ("/v1/messages", message),
            ("/v1/messages/count_tokens", message),
            ("/v1/responses", {"model": MODEL, "input": "w5"}),
        ):
            refused = http.post(path, json=body)  # this checkpoint has no chat template
            assert refused.status_code in (400, 422), refused.text
            assert "chat template" in refused.json()["error"]["message"]
