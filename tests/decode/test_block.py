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


def test_the_proposed_tokens_of_a_step() -> None:
    picks = (Pick(0, 1, 0.5), Pick(1, 2, 0.5))
    assert Step("mrp", picks).proposed == 2
    assert Step("denoise", picks).proposed == 0
    assert Step("verify", picks, drafted=picks[:1], accepted=1).proposed == 1
