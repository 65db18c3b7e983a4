"""Insertions and deletions as clients see them: in traces and step maps, and with the likeliest tokens."""

from typing import Any

import pytest

from service.decode.block import Pick, PositionLogprobs, Step
from service.replica.blocks import _likeliest
from tests.engine.test_insertions import EDITS
from tests.gateway.generate.helpers import ask, frames
from tests.gateway.helpers import over
from tests.tiny import LLADA22_NAME, golden

MOVING = [entry for entry in EDITS if entry["moves"] and entry["token_ids"]]


def body(entry: dict[str, Any], **fields: Any) -> dict[str, Any]:
    names = ("mode", "threshold", "edit_threshold", "max_post_edit_steps", "prompt_token_ids", "max_new_tokens")
    return {name: entry[name] for name in names} | {"temperature": 0, "return_trace": True} | fields


def replay(entry: dict[str, Any], trace: list[dict[str, Any]]) -> list[int]:
    """The tokens that the steps of a trace leave, after the prompt."""
    blocks: list[list[int | None]] = [[None] * 32 for _ in range(trace[-1]["block"] + 1)]
    for step in trace:
        cells = blocks[step["block"]]
        for position in step["revoked"]:
            assert cells[position] is not None
            cells[position] = None
        if "moved" in step:
            cells[:] = [None if source < 0 else cells[source] for source in step["moved"]]
        for position, token, _ in step["revealed"]:
            assert cells[position] is None
            cells[position] = token
    tokens = [token for cells in blocks for token in cells][len(entry["prompt_token_ids"]) % 32 :]
    return [token for token in tokens if token is not None]


@pytest.mark.parametrize("number", range(0, len(MOVING), 4))
async def test_a_trace_says_what_moves(make_generator, number):
    entry = MOVING[number]
    async with over(make_generator("r0", golden(LLADA22_NAME))) as http:
        answer = await ask(http, body(entry, return_step_map=True))
        steps = [
            data for name, data in await frames(http, body(entry, stream=True, stream_steps=True)) if name == "step"
        ]
    assert answer["token_ids"] == entry["token_ids"]
    assert sum("moved" in step for step in answer["trace"]) >= 1
    assert replay(entry, answer["trace"])[: len(entry["token_ids"])] == entry["token_ids"]
    assert [step.get("moved") for step in steps] == [step.get("moved") for step in answer["trace"]]
    assert sum(len(step["revoked"]) for step in answer["trace"]) == answer["stats"]["remasked"]
    assert len(answer["step_map"]) == len(entry["token_ids"])


def test_the_likeliest_tokens_move_with_the_token() -> None:
    def pick(position: int, token: int) -> Pick:
        return Pick(position, token, 0.5, PositionLogprobs(((token, -0.5), (99, -1.0))))

    steps = [
        Step("denoise", (pick(0, 10), pick(1, 11), pick(2, 12))),
        Step("denoise", (pick(3, 13),), remasked=(0,), moved=(1, -1, 2, -1)),
        Step("denoise", (pick(1, 14),)),
    ]
    assert [top for [top] in _likeliest(steps, 1)] == [(11, -0.5), (14, -0.5), (12, -0.5), (13, -0.5)]
