"""Warm-up: runs a forward of every shape before requests come, the largest first.

On CUDA the first forward of a shape compiles Triton's kernels and captures a CUDA graph, which takes seconds.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from service.decode.block import Block
from service.decode.rules import TopConfidence
from service.engine.forward.partition import BatchPartition
from service.engine.forward.rows import Anchor, Candidates, ForwardOutput, Row, apart, masked_row
from service.engine.request import LogprobsRequest, SamplingParams
from service.model.config import ModelConfig

#: the most rows of a unit that change the tiles of queries: tiles have 64 queries at most
_LARGEST_UNIT = 64
#: tokens before a row whose prefix is divided among several programs
_LONG = 1024
#: greedy, sampled, and filtered positions: each starts other kernels
_SAMPLINGS = (SamplingParams(), SamplingParams(0.7), SamplingParams(0.7, min_p=0.1), SamplingParams(0.7, 0.9, 20))


class WarmUpRows:
    """The rows of warm-up forwards. They write no page of a request, and read any of the cache's `num_pages` pages."""

    def __init__(self, config: ModelConfig, num_pages: int, partition: BatchPartition, *, has_mrp: bool) -> None:
        self._config, self._num_pages, self._partition, self._has_mrp = config, num_pages, partition, has_mrp
        self._longest = min(config.max_positions // config.block_size, num_pages) - 1

    def shapes(self, sizes: Sequence[int]) -> Iterator[list[Row]]:
        """Rows of every shape that a forward can have, the largest first. `sizes`: numbers of rows."""
        if self._partition.fixed_shapes:
            for power in range(self._longest.bit_length(), -1, -1):
                yield [self._row(min((1 << power) // 2, self._longest))]
            return
        for size in sorted(sizes, reverse=True):
            unit = 1
            while unit <= min(size, _LARGEST_UNIT):
                yield [self._row(1)] * unit + apart(self._row(1), size - unit)
                unit *= 2

    def samplings(self) -> Iterator[list[Row]]:
        """Rows that are sampled in every way, one way at a time. The first row reads a long prefix."""
        row = self._row(min(_LONG // self._config.block_size, self._longest))
        for sampling in _SAMPLINGS:
            yield [replace(row, sampling=sampling)]
        revealed = Block((0, *row.state.tokens[1:]))
        yield [replace(row, state=revealed, rescore=(0,), entropy=True)]
        yield [replace(row, logprobs=LogprobsRequest(1, (0,)))]
        yield [replace(row, pages=[*row.pages, self._num_pages], writes_kv=True)]  # a spare page
        if self._has_mrp:
            for sampling in _SAMPLINGS[:2]:
                yield [replace(row, sampling=sampling, drafts=True)]

    def drafting(self, rows: Sequence[Row], hidden: Tensor, num_candidates: int) -> list[Row]:
        """The rows as the first ones of replays for drafts. `hidden` `[1, L, H]`: the anchor of all."""
        tokens, slots = hidden.new_zeros(1, num_candidates).long(), np.zeros((1, hidden.shape[1]), np.int64)
        candidates = Candidates(tokens, hidden.new_zeros(1).float())
        anchor = Anchor(ForwardOutput(hidden, candidates, slots, np.ones(1, np.bool_)), 0)
        return [replace(row, anchor=anchor, drafts=True, rule=TopConfidence()) for row in rows]

    def largest(self, count: int) -> Iterator[list[Row]]:
        """The forwards of `count` rows that need the most memory, one greedy, one filtered."""
        for sampling in (_SAMPLINGS[0], _SAMPLINGS[-1]):
            row = replace(self._row(1), sampling=sampling, drafts=self._has_mrp and not sampling.top_k)
            yield apart(row, count)

    def _row(self, index: int) -> Row:
        return masked_row(self._config, self._num_pages, index)
