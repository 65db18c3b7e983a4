"""POST /generate over HTTP in this process: the golden decodes, at once and streamed, their counts and traces."""

import asyncio
from typing import Any

import pytest

from service.api.answers import BlockFrame, Done, GenerateAnswer
from tests.gateway.generate.helpers import CASES, EOS, ask, body, essence, frames, golden_body, streamed, words
from tests.gateway.helpers import assert_shape


class TestGolden:
    @pytest.mark.parametrize("number", range(len(CASES)))
    async def test_a_golden_decode_is_answered_whole_and_streamed(self, http, number):
        case = CASES[number]
        request = golden_body(case, seed=number)
        answer = await ask(http, request)
        assert_shape(GenerateAnswer, answer)
        assert answer["token_ids"] == case["token_ids"]
        assert answer["text"] == words(case["token_ids"])
        stopped = len(case["token_ids"]) < case["max_new_tokens"]
        assert answer["finish_reason"] == ("stop" if stopped else "length")
        assert (answer["mode"], answer["seed"], answer["model"]) == (case["mode"], number, "golden")
        self.check_counts(case, answer, stopped)
        assert essence(await streamed(http, request)) == essence(answer)

    def check_counts(self, case: dict[str, Any], answer: dict[str, Any], stopped: bool) -> None:
        prompt, tokens = len(case["prompt_token_ids"]), len(case["token_ids"])
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        assert answer["usage"] == usage
        stats, forwards = answer["stats"], answer["stats"]["forwards"]
        decoding = forwards["denoise"] + forwards["verify"]
        assert 0 < decoding <= case["backbone_denoise_forwards"]
        assert stats["tokens_per_forward"] == round((tokens + stopped) / decoding, 4)
        backbone = decoding + forwards["prefill"] + forwards["commit"]
        assert stats["tokens_per_forward_total"] == round((tokens + stopped) / backbone, 4)
        assert (forwards["mrp"] > 0) == (case["mode"] in ("direct", "speculative", "remask"))
        assert (stats["drafts_proposed"] > 0) == (case["mode"] == "speculative")
        assert 0 <= stats["drafts_accepted"] <= stats["drafts_proposed"]
        assert 0 <= stats["queue_ms"] <= stats["first_block_ms"] <= stats["total_ms"]

    async def test_many_requests_at_once_are_answered_as_alone(self, http, generator):
        answers = await asyncio.gather(*(ask(http, golden_body(case)) for case in CASES))
        assert [answer["token_ids"] for answer in answers] == [case["token_ids"] for case in CASES]
        assert generator.snapshot().in_flight == 0


class TestFrames:
    @pytest.mark.parametrize("trace", [False, True])
    async def test_frames_have_their_schemas(self, http, trace):
        *blocks, (last, done) = await frames(http, body(return_trace=trace, max_new_tokens=33, ignore_eos=True))
        assert last == "done"
        assert_shape(Done, done)
        for name, block in blocks:
            assert name == "block"
            assert_shape(BlockFrame, block)
            assert ("trace" in block) == trace
        assert [block["index"] for _, block in blocks] == [0, 1, 2, 3, 4]


def replay(prompt: list[int], trace: list[dict[str, Any]]) -> list[int]:
    """The tokens that the steps of a trace leave, up to the first position of a block that is masked."""
    blocks: dict[int, dict[int, int]] = {}
    for step in trace:
        block = blocks.setdefault(step["block"], {})
        revealed = [(position, token) for position, token, _ in step["revealed"]]
        assert not block.keys() & dict(revealed).keys(), "a position is revealed twice"
        block.update(revealed)
        for position in step["revoked"]:
            del block[position]
        drafted = [(position, token) for position, token, _ in step["drafted"]]
        assert set(drafted[: step["accepted"]]) <= set(revealed)
    tokens: list[int] = []
    for index, block in sorted(blocks.items()):
        position = len(prompt) % 8 if index == 0 else 0
        while position in block:
            tokens.append(block[position])
            position += 1
    return tokens


class TestTrace:
    @pytest.mark.parametrize("number", range(0, len(CASES), 3))
    async def test_a_trace_replays_to_the_tokens(self, http, number):
        case = CASES[number]
        answer = await ask(http, golden_body(case, return_trace=True, seed=0))
        assert_shape(GenerateAnswer, answer)
        tokens = replay(case["prompt_token_ids"], answer["trace"])[: case["max_new_tokens"]]
        wanted = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
        assert wanted == answer["token_ids"] == case["token_ids"]
        stats, trace = answer["stats"], answer["trace"]
        assert sum(len(step["drafted"]) for step in trace) == stats["drafts_proposed"]
        assert sum(step["accepted"] for step in trace) == stats["drafts_accepted"]
        assert sum(len(step["revoked"]) for step in trace) == stats["remasked"]
        assert all(0 < pick[2] <= 1 for step in trace for pick in step["revealed"])
        again = await streamed(http, golden_body(case, return_trace=True, seed=0))
        assert essence(again) == essence(answer)
