"""Batches of examples as a function of their number: the same after a resume and in every worker.

The rows of a batch have similar shapes, so there is little padding.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from training.batch import Batch, collate
from training.conversations import Example
from training.layout import Layout

#: so many batches of examples are sorted by shape together before they are divided
_POOL = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """`rows`: rows of a batch. `block`: the block size. `pad_id`, `mask_id`: tokens of padding and of masks.

    `tokens`: the most tokens of a batch with its padding. With this limit a batch may have fewer rows. `sub_block`: as
    in `Layout`.
    """

    rows: int
    block: int
    pad_id: int
    mask_id: int
    tokens: int | None = None
    sub_block: int | None = None


class Stream:
    """An endless, seeded stream of batches with every example once per epoch."""

    def __init__(self, examples: Sequence[Example], shape: Shape, seed: int) -> None:
        self._examples = examples
        self._shape = shape
        self._seed = seed
        self._epoch: tuple[int, list[list[int]]] = (-1, [])
        self._windows = list(self._limited(shape.tokens)) if shape.tokens else []

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches that contain every example once."""
        return len(self._windows) or -(-len(self._examples) // self._shape.rows)

    def batch(self, number: int) -> Batch:
        """The number-th batch."""
        epoch, index = divmod(number, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch))
        return self._collate([self._examples[example] for example in self._epoch[1][index]])

    def rounds(self, first: int, of: int, mine: range) -> Iterator[list[Batch]]:
        """The batches of every round from `first` on. A round has `of` batches; `mine`: the indices to return."""
        for number in itertools.count(first):
            yield [self.batch(number * of + index) for index in mine]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        rng, rows = random.Random(f"{self._seed}/{epoch}"), self._shape.rows
        if self._windows:
            return rng.sample(self._windows, len(self._windows))
        order = rng.sample(range(len(self._examples)), len(self._examples))
        order += rng.choices(order, k=-len(order) % rows)  # fills the last batch
        pools = [order[at : at + rows * _POOL] for at in range(0, len(order), rows * _POOL)]
        alike = [sorted(pool, key=self._blocks) for pool in pools]
        batches = [pool[at : at + rows] for pool in alike for at in range(0, len(pool), rows)]
        rng.shuffle(batches)
        return batches

    def _limited(self, tokens: int) -> Iterator[list[int]]:
        """All examples, the similar ones together, in batches of at most `tokens` tokens or one example."""
        batch: list[int] = []
        longest, most = 0, max(1, tokens // self._shape.block)
        for index in sorted(range(len(self._examples)), key=self._blocks):
            longer = max(longest, self._blocks(index)[1])
            if batch and (longer * (len(batch) + 1) > most or len(batch) == self._shape.rows):
                yield batch
                batch, longer = [], self._blocks(index)[1]
            batch.append(index)
            longest = longer
        yield batch

    def _blocks(self, index: int) -> tuple[int, int, int]:
        example = self._examples[index]
        return example.start // self._shape.block, -(-example.end // self._shape.block), index

    def _collate(self, examples: list[Example]) -> Batch:
        block = self._shape.block
        length = max(-(-example.end // block) for example in examples) * block
        first = min(example.start // block for example in examples) * block
        rows = [(example.tokens, example.start) for example in examples]
        layout = Layout(length, first, block, self._shape.sub_block)
        return collate(rows, layout, self._shape.pad_id, self._shape.mask_id)
