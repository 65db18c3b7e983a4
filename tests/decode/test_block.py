"""Blocks, canvases and steps."""

import pytest

from service.decode.block import MASKED, Block, Pick, Step
from service.decode.canvas import Canvas

M = MASKED


@pytest.mark.parametrize(
    ("tokens", "leading", "complete"), [((M, M), 0, False), ((4, 5), 2, True), ((4, M), 1, False), ((), 0, True)]
)
def test_leading_and_complete(tokens: tuple[int, ...], leading: int, complete: bool) -> None:
    assert (Block(tokens).num_leading, Block(tokens).complete) == (leading, complete)


def test_reveal_and_mask_give_new_blocks() -> None:
    block = Block((7, M, M))
    revealed = block.reveal([Pick(2, 9, 0.5)])
    assert revealed == Block((7, M, 9))
    assert revealed.remask([0, 2]) == Block((M, M, M))
    assert block == Block((7, M, M))


def test_a_canvas_records_its_steps() -> None:
    canvas = Canvas(Block((M, M, M)))
    first, second = Pick(1, 4, 0.9), Pick(0, 5, 0.4)
    canvas.reveal("denoise", [first])
    canvas.record(Step("verify", (second,), drafted=(second,), accepted=1))
    canvas.remask("mrp", [1])
    assert canvas.block == Block((5, M, M))
    assert canvas.steps == [
        Step("denoise", (first,)),
        Step("verify", (second,), drafted=(second,), accepted=1),
        Step("mrp", remasked=(1,)),
    ]


def test_a_canvas_records_what_moves() -> None:
    """The first token is deleted and the second one replaced. The last one, replaced in the same step, has no place."""
    canvas = Canvas(Block((7, 8, M, 9)))
    picks = [Pick(1, 4, 0.9), Pick(2, 5, 0.8), Pick(3, 6, 0.7)]
    canvas.edit("denoise", picks, (1, -1, -1, 2))
    assert canvas.block == Block((4, M, M, 5))
    assert canvas.steps == [
        Step("denoise", (Pick(0, 4, 0.9), Pick(3, 5, 0.8)), remasked=(0, 1, 3), moved=(1, -1, -1, 2))
    ]


def test_a_canvas_leaves_out_a_pick_that_changes_nothing() -> None:
    canvas = Canvas(Block((7, M)))
    canvas.edit("denoise", [Pick(0, 7, 0.5), Pick(1, 8, 0.5)])
    assert canvas.steps == [Step("denoise", (Pick(1, 8, 0.5),))]


def test_the_proposed_tokens_of_a_step() -> None:
    picks = (Pick(0, 1, 0.5), Pick(1, 2, 0.5))
    assert Step("mrp", picks).proposed == 2
    assert Step("denoise", picks).proposed == 0
    assert Step("verify", picks, drafted=picks[:1], accepted=1).proposed == 1
