"""Batches of examples as a function of their number: the same wherever a run goes on and whichever worker asks.

Rows of a batch are of like shape, so that little is padded. Knows no model and no files.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from training.batch import Batch, collate
from training.conversations import Example
from training.layout import Layout

#: Batches whose examples are sorted by shape before they are cut apart.
_POOL = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """`rows` of one batch, in blocks of `block`; what stands where nothing is, and where something is to be decoded."""

    rows: int
    block: int
    pad_id: int
    mask_id: int


class Stream:
    """An endless, seeded stream of batches; every example once an epoch."""

    def __init__(self, examples: Sequence[Example], shape: Shape, seed: int) -> None:
        self._examples = examples
        self._shape = shape
        self._seed = seed
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    @property
    def batches_per_epoch(self) -> int:
        """Batches until every example was there."""
        return -(-len(self._examples) // self._shape.rows)

    def batch(self, number: int) -> Batch:
        """The number-th batch."""
        epoch, place = divmod(number, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch))
        return self._collate([self._examples[index] for index in self._epoch[1][place]])

    def rounds(self, first: int, of: int, mine: range) -> Iterator[list[Batch]]:
        """From round `first` on, a round being `of` batches, those of its batches that `mine` names."""
        for number in itertools.count(first):
            yield [self.batch(number * of + index) for index in mine]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        rng, rows = random.Random(f"{self._seed}/{epoch}"), self._shape.rows
        order = rng.sample(range(len(self._examples)), len(self._examples))
        order += rng.choices(order, k=-len(order) % rows)  # so that the last batch is a whole one
        pools = [order[at : at + rows * _POOL] for at in range(0, len(order), rows * _POOL)]
        alike = [sorted(pool, key=self._blocks) for pool in pools]
        batches = [pool[at : at + rows] for pool in alike for at in range(0, len(pool), rows)]
        rng.shuffle(batches)
        return batches

    def _blocks(self, index: int) -> tuple[int, int, int]:
        example = self._examples[index]
        return example.start // self._shape.block, -(-example.end // self._shape.block), index

    def _collate(self, examples: list[Example]) -> Batch:
        block = self._shape.block
        length = max(-(-example.end // block) for example in examples) * block
        first = min(example.start // block for example in examples) * block
        rows = [(example.tokens, example.start) for example in examples]
        return collate(rows, Layout(length, first, block), self._shape.pad_id, self._shape.mask_id)
