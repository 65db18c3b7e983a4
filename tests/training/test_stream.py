"""Batches as a function of their number: whole epochs, rows of like shape, nothing decoded in padding."""

from dataclasses import replace

import pytest
import torch

from training.conversations import Example
from training.stream import Shape, Stream

EXAMPLES = [Example(range(100, 100 + 3 + number % 23), number % 5, 3 + number % 23) for number in range(37)]
SHAPE = Shape(rows=4, block=4, pad_id=0, mask_id=1)


def seen(stream, numbers):
    """Examples of the batches, as (tokens taught, tokens in all)."""
    rows = []
    for batch in map(stream.batch, numbers):
        rows += zip(batch.answer.sum(1).tolist(), (batch.tokens != 0).sum(1).tolist(), strict=True)
    return rows


def test_an_epoch_has_every_example_and_the_next_another_order():
    stream = Stream(EXAMPLES, SHAPE, seed=3)
    everything = {(example.end - example.start, example.end) for example in EXAMPLES}
    first, second = (seen(stream, range(at, at + stream.batches_per_epoch)) for at in (0, 10))
    assert stream.batches_per_epoch == 10
    assert set(first) == set(second) == everything
    assert first != second


def test_a_batch_depends_on_its_number_alone():
    stream, other = Stream(EXAMPLES, SHAPE, seed=3), Stream(EXAMPLES, SHAPE, seed=3)
    assert torch.equal(stream.batch(25).tokens, other.batch(25).tokens)
    assert seen(Stream(EXAMPLES, SHAPE, seed=4), range(10)) != seen(stream, range(10))


def test_a_batch_has_at_most_its_tokens_and_an_epoch_every_example_once():
    stream = Stream(EXAMPLES, replace(SHAPE, rows=100, tokens=64), seed=3)
    sizes = [stream.batch(number).tokens.numel() for number in range(stream.batches_per_epoch)]
    assert max(sizes) <= 64
    assert sum(sizes) <= 1.4 * sum(example.end for example in EXAMPLES)
    taught = sorted(seen(stream, range(stream.batches_per_epoch)))
    assert taught == sorted((example.end - example.start, example.end) for example in EXAMPLES)
    first, second = (seen(stream, range(at, at + len(sizes))) for at in (0, len(sizes)))
    assert first != second
    assert sorted(first) == sorted(second)
    few = Stream(EXAMPLES, replace(SHAPE, rows=3, tokens=64), seed=3)
    assert max(len(few.batch(number).tokens) for number in range(few.batches_per_epoch)) == 3


def test_an_example_longer_than_the_tokens_of_a_batch_is_a_batch_alone():
    stream = Stream([Example(range(40), 0, 40), Example(range(40), 0, 4)], replace(SHAPE, tokens=16), seed=0)
    assert sorted(stream.batch(number).tokens.numel() for number in range(2)) == [4, 40]


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_examples_than_rows_are_repeated(count):
    assert len(Stream(EXAMPLES[:count], SHAPE, seed=0).batch(5).tokens) == 4


def test_only_answers_and_the_rest_of_their_last_block_are_masked():
    long, short = Example(range(100, 121), 9, 21), Example(range(100, 106), 2, 6)
    [batch] = [Stream([long, short], Shape(2, 4, 0, 1), seed=0).batch(0)]
    assert (batch.layout.first, batch.layout.length) == (0, 24)
    masked = (batch.masked(batch.answer) == 1).int().tolist()
    rows = sorted("".join(map(str, row)) for row in masked)
    assert rows == ["000000000111111111111111"[:24], "001111110000000000000000"]
