"""Runs rows through the backbone or through MRP, and samples the output.

Forwards begin now and are read later. The partition decides which rows share a forward, the model forward computes
hidden states, the sampler chooses tokens.
"""

import dataclasses
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from service.decode.block import Block
from service.decode.rules import TopConfidence
from service.engine.forward.draft_vocabulary import DraftVocabulary
from service.engine.forward.logits_sampler import logits_sampler_for
from service.engine.forward.model_forward import ExecutionConfig, Network, ShapePolicy
from service.engine.forward.partition import BatchPartition, WholeBatch, join, position_limits
from service.engine.forward.pending import Pending, attempt
from service.engine.forward.replays import MAX_FORWARDS, MAX_POSITIONS, ReplayTables, can_replay, replay_predictions
from service.engine.forward.rows import Anchor, ForwardOutput, Row
from service.engine.forward.sampler import Sampler
from service.engine.forward.sampling_batch import SamplingBatch
from service.engine.forward.warm_up import WarmUpRows
from service.engine.memory_plan import ForwardMemory
from service.model.attention import resolve_backend
from service.model.checkpoint import Checkpoint
from service.model.device import free_bytes, measure_peak
from service.model.transfer import HostCopies, PackedTables

_log = logging.getLogger(__name__)

#: the maximum of rows of a warm-up forward where there are no graphs
_EAGER_ROWS = 64


class ModelRunner:
    """The networks of a checkpoint over one paged KV cache. `num_candidates`: draft candidates a position, 0: none.

    `model`: the networks, their KV cache and their CUDA graphs. `keeps_states`: whether states of rows may be
    `on_device`, as the host has not read the results that lead to them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_pages: int,
        partition: BatchPartition | None = None,
        num_candidates: int = 0,
        execution: ExecutionConfig | None = None,
    ) -> None:
        execution = execution or ExecutionConfig()
        attention = resolve_backend(execution.attention, checkpoint.device, checkpoint.dtype)
        execution = dataclasses.replace(execution, attention=attention)
        self.config, self.device, self._dtype = checkpoint.config, checkpoint.device, checkpoint.dtype
        self._partition = partition or WholeBatch(*position_limits(checkpoint.config.vocab_size))
        shapes = ShapePolicy(self._partition.min_rows, self._partition.fixed_shapes)
        self.model = execution.networks(checkpoint, num_pages, shapes, execution)
        logits_sampler = logits_sampler_for(self.config.mask_token_id, checkpoint.device, checkpoint.dtype)
        self._sampler = Sampler(checkpoint, logits_sampler, self._partition, num_candidates, self.model.states)
        has_kernels = logits_sampler.keeps_logits and attention == "triton"
        self.keeps_states = (has_kernels or self.device.type == "cpu") and checkpoint.shard.size == 1
        # a replay's confidences may be rounded otherwise, which `deterministic` does not allow where drafts decide
        self._replays = has_kernels and self.keeps_states and type(self._partition) is WholeBatch
        self._replays &= not self.config.shifted
        self._copies = HostCopies()
        self._num_candidates = num_candidates
        has_mrp = checkpoint.mrp is not None
        self._warm_up = WarmUpRows(self.config, num_pages, self._partition, has_mrp=has_mrp)
        self._networks: tuple[Network, ...] = ("backbone", "mrp") if has_mrp else ("backbone",)

    def prepare(self, max_rows: int) -> None:
        """Compiles the kernels and captures the CUDA graphs of all forwards of up to `max_rows` rows.

        Does nothing on a CPU. A shape for which memory is too short has no graph.
        """
        if self.device.type != "cuda":
            return
        start, free = time.monotonic(), free_bytes(self.device)
        self._capture(self._sizes(max_rows))
        self._warm_up_kernels()
        self.model.seal()
        if self.model.graphs is not None:
            _log.info(
                "captured %d CUDA graphs in %.1f s; they take %.0f MiB",
                len(self.model.graphs),
                time.monotonic() - start,
                (free - free_bytes(self.device)) / 2**20,
            )
        self.model.eager_forwards = 0

    def measure_bytes(self, max_rows: int) -> ForwardMemory:
        """The memory of all graphs and of the largest forward on CUDA. Captures the graphs of some sizes.

        The largest size goes first: it takes the memory that all graphs share. Sizes that are not captured take what
        those next to them take, by their rows.
        """
        free, sizes = free_bytes(self.device), self._sizes(max_rows)
        sample, taken = self._sample(sizes), list[int]()
        for size in sample:
            before = free_bytes(self.device)
            self._capture([size])
            taken.append(before - free_bytes(self.device))
        self._warm_up_kernels()
        rest = [size for size in sizes if size not in sample]
        uncaptured = int(np.interp(rest, sample[:0:-1], taken[:0:-1]).sum()) if rest else 0
        graphs = max(0, free - free_bytes(self.device) + uncaptured)

        def largest() -> None:
            for rows in self._warm_up.largest(max_rows):
                self._begin_then_sample("backbone", rows)()

        return ForwardMemory(graphs, measure_peak(self.device, largest))

    def _sizes(self, max_rows: int) -> list[int]:
        """The numbers of rows whose forwards are warmed up, the largest first."""
        graphs = self.model.graphs
        if graphs is None or self._partition.fixed_shapes:
            return [min(max_rows, _EAGER_ROWS)]
        return graphs.sizes[bisect_left(graphs.sizes, max_rows) :: -1]

    def _sample(self, sizes: Sequence[int]) -> list[int]:
        """The two largest sizes, and of those with equal numbers of graphs the first and the last."""

        def num_graphs(size: int) -> tuple[int, bool]:
            groups = (group for rows in self._warm_up.shapes([size]) for group in self._partition.rows(rows))
            shapes = {graphs.shape(group.members, group.width) for group in groups} if graphs is not None else set()
            return len(shapes), size * self.config.block_size <= MAX_POSITIONS

        graphs = self.model.graphs
        runs = [list(run) for _, run in groupby(sizes, num_graphs)]
        return sorted({*sizes[:2], *(size for run in runs for size in (run[0], run[-1]))}, reverse=True)

    def _capture(self, sizes: Sequence[int]) -> None:
        for rows in self._warm_up.shapes(sizes):
            self._compute_once(rows)

    def _warm_up_kernels(self) -> None:
        """Starts the kernels that no graph has."""
        for rows in self._warm_up.samplings():
            for row, prediction in zip(rows, self._begin_then_sample("backbone", rows)(), strict=True):
                if "mrp" in self._networks:
                    anchored = replace(row, anchor=prediction.handle, rescore=(), logprobs=None)
                    self._begin_then_sample("mrp", [anchored])()
        if self.keeps_states:
            self._warm_up_states()

    def _compute_once(self, rows: Sequence[Row]) -> None:
        config = self.config
        hidden = torch.zeros(1, config.block_size, config.hidden_size, device=self.device, dtype=self._dtype)
        anchored = [replace(row, anchor=Anchor(ForwardOutput(hidden), 0)) for row in rows]
        for network in self._networks:
            members = anchored if network == "mrp" else rows
            if all(self.model.is_known(network, group) for group in self._partition.rows(members)):
                continue
            pending = attempt(partial(self._begin_then_sample, network), members)
            if pending is not None:
                pending()
        replayed = [rows]
        if "mrp" in self._networks:
            drafting = self._warm_up.drafting(rows, hidden, self._num_candidates)
            replayed.append([replace(row, drafts=False) for row in drafting])
            if self._num_candidates:
                replayed.append(drafting)
        for members in replayed:
            attempt(partial(self.begin_replays, counts=[1] * len(rows)), members)

    def _warm_up_states(self) -> None:
        """Starts the kernels of a row whose state is on the device."""
        row, has_mrp = next(self._warm_up.samplings())[0], "mrp" in self._networks
        row = replace(row, rule=TopConfidence(), first_line=1)
        state = Block((0, *row.state.tokens[1:]))
        for drafts in range(1 + has_mrp):
            row = replace(row, drafts=bool(drafts))
            [anchor] = self._begin_then_sample("backbone", [row]).anchors
            network: Network = "mrp" if drafts else "backbone"
            following = replace(row, state=state, on_device=True, anchor=anchor if drafts else None)
            self._begin_then_sample(network, [following])()

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        """Begins a forward of a network over rows; for MRP the rows have anchors. -> a Prediction for every row.

        The `handle` of a Prediction is the next anchor. Forwards are computed in their order of beginning. The results
        of a backbone's forward and of MRP's after it come to the host together, unless MRP drafts.
        """
        if network == "backbone":
            self._copies.begin()  # no earlier result waits for this forward
            replays = self.begin_replays(rows, [1] * len(rows))
            if replays is not None:
                return replays[0]
        return self._begin_then_sample(network, rows)

    @torch.inference_mode()
    def _begin_then_sample(self, network: Network, rows: Sequence[Row]) -> Pending:
        """As `begin`. The sampler follows the forward, over the positions that are read alone."""
        if self.device.type == "cpu":  # earlier forwards are over
            rows = self.model.states.with_states(rows)
        hidden: list[Tensor] = []
        order: list[int] = []
        groups = self._partition.rows(rows)
        for group in groups:
            tables = PackedTables(self.device)
            forward = self.model.plan(network, group, tables)
            indices = [group.indices[i] for i in forward.order if i < len(group.indices)]
            order += indices
            if group is groups[-1]:  # the sampler's tables go with the last forward's
                in_order = order == list(range(len(rows)))
                ordered = rows if in_order else [rows[index] for index in order]
                sampling = self._sampler.plan(ordered, tables)
            hidden.append(forward.run()[: len(indices)])
        pending = sampling.begin(join(hidden), self._copies)
        return pending if in_order else pending.sorted_by(order)

    @torch.inference_mode()
    def begin_replays(self, rows: Sequence[Row], counts: Sequence[int]) -> list[Pending] | None:
        """Begins replays of MRP's forward. Each reads the states after the picks of the one before.

        The rows have anchors; without them there is one replay, of the backbone. `counts`: the replays in which each
        takes part; those for drafts may be fewer. -> one for each, with a Prediction for every row. None if the device
        needs the host between the forward and its picks.
        """
        graphs, length, mask = self.model.graphs, self.config.block_size, self.config.mask_token_id
        if graphs is None or not self._replays or not can_replay(rows, counts):
            return None
        drafts = DraftVocabulary.for_rows(rows, length, self._num_candidates, mask)
        if drafts is not None and not drafts.covers(rows):
            return None
        tables = PackedTables(self.device)
        batch = SamplingBatch.from_rows(rows, length)
        replays = ReplayTables.of(batch.metadata, counts, drafts)
        planned = self.model.plan_replays(self._partition.rows(rows)[0], replays, tables)
        count = min(max(counts), MAX_FORWARDS)
        if planned is not None and rows[-1].drafts and rows[-1].anchor is not None:
            self._copies.begin()  # the backbone's results: the host reads them while MRP drafts
        results = None if planned is None else graphs.run_replays(planned, count, self._copies)
        if results is None:
            return None
        if rows[0].anchor is not None:
            self._copies.begin()  # before later replays overwrite the values
        return [
            self._replayed(
                batch, ForwardOutput(hidden) if drafts is None else drafts.output(hidden), results.values, number
            )
            for number, hidden in enumerate(results.hidden)
        ]

    @staticmethod
    def _replayed(
        batch: SamplingBatch, output: ForwardOutput, values: Callable[[], list[Tensor]], number: int
    ) -> Pending:
        anchors = [Anchor(output, index) for index in range(len(output.hidden))]
        return Pending(anchors, lambda: replay_predictions(batch, output, values()[0][number].numpy()))


def forward_clock(device: torch.device, ranks: int = 1) -> Callable[[], float]:
    """A clock in seconds for timing forwards: with one CPU thread its CPU time, so other programs do not count."""
    alone = device.type == "cpu" and torch.get_num_threads() == ranks == 1
    return time.thread_time if alone else time.perf_counter
