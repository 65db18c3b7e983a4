"""MRP without its prefix context."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.evaluation import block_only
from service.decode.modes import Direct, Speculative, Static
from service.engine import Engine, GenerationRequest
from service.errors import CheckpointError
from service.model import load_checkpoint

FOLDER = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-a"


@pytest.fixture(scope="module")
def checkpoint():
    return load_checkpoint(FOLDER)


def picks(checkpoint, mode, prompt):
    """Position and token of the picks of each block of a completion."""
    [completion] = Engine(checkpoint).generate([GenerationRequest("1", prompt, mode, max_new_tokens=16)])
    return [[pick[:2] for step in block.steps for pick in step.revealed] for block in completion.blocks]


def test_only_blocks_behind_others_are_read_in_another_way(checkpoint):
    blind, prompt = block_only(checkpoint), (3, 7)
    ours, theirs = picks(checkpoint, Direct(2), prompt), picks(blind, Direct(2), prompt)
    assert len(ours) > 1
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]


def test_drafts_without_prefix_are_verified_all_the_same(checkpoint):
    prompt = tuple(range(1, 12))
    drafted = GenerationRequest("1", prompt, Speculative(3), max_new_tokens=24)
    plain = GenerationRequest("1", prompt, Static(), max_new_tokens=24)
    [drafted_answer] = Engine(block_only(checkpoint)).generate([drafted])
    [plain_answer] = Engine(checkpoint).generate([plain])
    assert drafted_answer.token_ids == plain_answer.token_ids


def test_a_backbone_alone_has_nothing_to_blind(checkpoint):
    with pytest.raises(CheckpointError, match="no MRP"):
        block_only(replace(checkpoint, mrp=None))
