"""Engines to test with, requests to give them, and a runner that checks every forward."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from msgspec import structs

from service.decode.block import MASKED, Block
from service.decode.mode import DecodingMode, RuleMode
from service.decode.modes import Direct, Dynamic, Edit, Entropy, Remask, Sequential, Speculative, Static
from service.decode.policy import Prediction
from service.demo import CHECKPOINT, heldout_problems
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams, StepReport
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.engine.prefix_cache import Lease, PrefixCache
from service.model import Checkpoint, ModelConfig, load_checkpoint
from service.text import TextCodec
from tests.reference import Reference
from tests.runners import RunnerWrapper, engine_over
from tests.tiny import DIFFCODER, EXPERTS, FAST_DLLM, I_DLM, LLADA2, tiny_checkpoint

ALL_MODES: tuple[DecodingMode, ...] = (
    Static(), Dynamic(0.5), Sequential(1, 0.5), Entropy(), Direct(1), Direct(2, 0.5), Speculative(1), Remask(0.5),
    Edit(0.3, 0.1),
)  # fmt: skip

#: changes of `tiny_config`: sizes of blocks, heads, kinds of MRP, experts, families
SHAPES: tuple[dict[str, Any], ...] = (
    {"block_size": 1},
    {"block_size": 2, "num_key_value_heads": 4, "num_nextn_predict_layers": 2},
    {"block_size": 4},
    {"block_size": 8, "num_key_value_heads": 1, "mrp_scale": 2.0},
    {"block_size": 4, "mrp_residual": False},
    EXPERTS,
    LLADA2 | {"block_size": 4, "num_nextn_predict_layers": 1},
    DIFFCODER,
    FAST_DLLM,
    I_DLM,
    I_DLM | {"page_size": 4, "block_size": 2},
)

#: Times of forwards. Rows are free, as on an idle GPU; cost a quarter of a forward, as on a CPU; more than they bring.
FREE_ROWS = StepCosts(Curve(((1, 10.0), (256, 10.0))), Curve(((1, 0.5), (256, 0.5))))
CHEAP_ROWS = StepCosts(Curve(((1, 2.0), (256, 130.0))), Curve(((1, 0.8), (256, 60.0))))
DEAR_ROWS = StepCosts(Curve(((1, 1.0), (256, 500.0))), Curve(((1, 0.1), (256, 20.0))))
#: rows are free, the host takes half of a step, and finding drafts takes longer than the forwards they save
SLOW_HOST = StepCosts(Curve(((1, 10.0), (256, 10.0))), draft=50.0, turn=Curve(((1, 5.0), (256, 5.0))))


@cache
def shaped(shape: int, dtype: torch.dtype = torch.float64) -> Checkpoint:
    return tiny_checkpoint(shape, dtype, **SHAPES[shape])


class Recorder:
    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self._pairs: list[tuple[GenerationRequest, BlockEvent]] = []

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: object) -> None:
        self._pairs.append((request, event))

    def clear(self) -> None:
        self._pairs.clear()

    @property
    def events(self) -> list[BlockEvent]:
        assert all(request.request_id == event.request_id for request, event in self._pairs)
        return [event for _, event in self._pairs]

    def forwards(self, kind: str) -> int:
        return sum(count for report in self.reports for name, count in report.forwards.items() if name == kind)


class CheckingRunner(RunnerWrapper):
    """Does what ModelRunner does and compares every reading with a recomputation of the whole sequence.

    It learns from the rows alone which clean block lies on which page, so it also finds pages that are
    read before they are written, by the wrong sequence, or that MRP was never shown.
    """

    def __init__(self, runner: ModelRunner, checkpoint: Checkpoint, kv_cache_dtype: str = "auto") -> None:
        super().__init__(runner)
        self.reference = Reference(checkpoint, kv_cache_dtype)
        self.exact = checkpoint.dtype == torch.float64
        self.clean: dict[int, tuple[int, ...]] = {}
        self.shown_to_mrp: set[int] = set()
        self.compared = 0

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        with_states = self.model.states.with_states(rows)
        #: the states that rows wrongly supposed to be complete: no row after them counts
        self.incomplete = {
            (id(row.pages), row.index)
            for row, then in zip(rows, with_states, strict=True)
            if row.writes_kv > then.writes_kv
        }
        return super().begin(network, with_states)

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        readings = super().evaluate(rows)
        for row in rows:
            if row.writes_kv:
                assert row.state.complete or self.config.causal  # there a row with masks is stored once more
                self.clean[row.pages[row.index]] = row.state.tokens
                self.shown_to_mrp.discard(row.pages[row.index])
        for row, reading in zip(rows, readings, strict=True):
            if (id(row.pages), row.index - 1) not in self.incomplete:
                prefix = self.prefix(row)
                hidden = self.reference.hidden([*prefix, *self.reference.filled(row.state)])[len(prefix) :]
                self.compare(row, reading, hidden)
        return readings

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        readings = super().refine(rows)
        self.shown_to_mrp |= {row.pages[row.index] for row in rows if row.writes_kv}
        for row, reading in zip(rows, readings, strict=True):
            assert self.shown_to_mrp >= set(row.pages[: row.index]), "MRP was not shown a block of the prefix"
            assert row.anchor is not None
            if row.writes_kv:
                clean = self.reference.evaluate(self.prefix(row), row.state)
                torch.testing.assert_close(row.anchor.hidden, clean, rtol=0, atol=1e-4)
            self.compare(row, reading, self.reference.refine(self.prefix(row), row.state, row.anchor.hidden))
        return readings

    def prefix(self, row: Row) -> list[int]:
        return self.reference.unmasked([token for page in row.pages[: row.index] for token in self.clean[page]])

    def compare(self, row: Row, reading: Prediction, hidden: torch.Tensor) -> None:
        self.compared += 1
        torch.testing.assert_close(reading.handle.hidden, hidden, rtol=0, atol=1e-9 if self.exact else 1e-4)
        if row.sampling is None:
            assert reading.picks == ()
            return
        start = row.index * len(row.state.tokens)
        judge, edit = ((), row.rescore) if row.edits else (row.rescore, ())
        state, size = row.state, len(row.state.tokens)
        if self.config.shifted and state.tokens[0] == MASKED:  # the row of the block before reads the first position
            state = Block((0, *state.tokens[1:]))
        wanted = self.reference.read(hidden, state, start, row.sampling, judge, edit=edit)
        picks = {pick.position: pick for pick in wanted.picks}
        read = sorted((*self.reference.readable(state), *edit))
        if row.opens_next:
            (opened,) = self.reference.read(hidden, Block((MASKED,) * size), start + size, row.sampling).picks
            picks[size] = opened
            read.append(size)
        if state != row.state:  # it is the leftmost of the masks that are read
            read = [position for position in read if position <= (self.config.draft_masks or 0)]
        assert list(reading.positions) == read
        assert [(pick.position, pick.token) for pick in reading.rescored] == [
            (pick.position, pick.token) for pick in wanted.rescored
        ]
        expected_picks = (*(picks[position] for position in read), *wanted.rescored)
        for got, expected in zip(reading.picks + reading.rescored, expected_picks, strict=True):
            if self.exact or row.sampling.temperature == 0:  # in float32 noise may tip a sampled tie
                assert abs(got.confidence - expected.confidence) < (1e-5 if self.exact else 1e-4)
            assert got.token == expected.token or not self.exact
        assert len(reading.entropies) == (len(reading.picks) if row.entropy else 0)
        for entropy, expected_entropy in zip(reading.entropies, wanted.entropies, strict=False):
            assert abs(entropy - expected_entropy) < (1e-5 if self.exact else 1e-4)


@cache
def demo_problems() -> tuple[Engine, tuple[GenerationRequest, ...]]:
    """The trained checkpoint, whose MRP drafts well, and problems for it."""
    codec, engine = TextCodec.load(CHECKPOINT), Engine(load_checkpoint(CHECKPOINT), EngineConfig(prefix_cache=False))
    stops = frozenset(engine.model.eos_token_ids)
    return engine, tuple(
        request_of(str(number), codec.encode_message(problem.prompt), tokens=48, stop_token_ids=stops)
        for number, problem in enumerate(heldout_problems(8))
    )


def checked(checkpoint: Checkpoint, costs: StepCosts | None = None, **limits: Any) -> tuple[Engine, CheckingRunner]:
    return engine_over(lambda runner: CheckingRunner(runner, checkpoint), checkpoint, EngineDeps(costs=costs), **limits)


def request_of(
    name: str, prompt: Sequence[int], mode: DecodingMode | None = None, tokens: int = 8, **more: Any
) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), mode or Static(), max_new_tokens=tokens, **more)


def random_mode(rng: random.Random, config: ModelConfig) -> DecodingMode:
    block_size = config.block_size
    count, threshold = rng.randint(1, block_size), rng.choice([0.05, 0.2, 0.4, 0.7, 1.0])
    bound = rng.choice([0.0, 0.5, 3.0, 12.0])
    plain = rng.choice([Static(count), Dynamic(threshold), Sequential(rng.choice([1, count]), bound), Entropy(bound)])
    direct = Direct(count, rng.choice([None, None, threshold]))
    if config.causal:
        return rng.choice([plain, Speculative(0, count), without_mrp(drafted(rng, plain, block_size))])
    return rng.choice(
        [plain, direct, Speculative(count), drafted(rng, plain, block_size), Remask(threshold), random_edit(rng)]
    )


def without_mrp(mode: Speculative) -> Speculative:
    return structs.replace(mode, mrp_steps=0, max_drafts=mode.max_drafts or 1)


def random_edit(rng: random.Random) -> Edit:
    return Edit(rng.choice([0.05, 0.4, 1.0]), rng.choice([0.0, 0.1, 0.5, 1.0]), rng.choice([0, 1, 16]))


def drafted(rng: random.Random, plain: RuleMode, block_size: int) -> Speculative:
    """`speculative` whose output is that of `plain`: a chain or a tree of any size, with and without MRP."""
    tree = rng.random() < 0.7
    steps, states = rng.randint(0 if tree else 1, block_size), rng.randint(1, block_size)
    return Speculative(steps, states if tree else None, verify=plain.name, **structs.asdict(plain))


def some_auto(rng: random.Random, requests: list[GenerationRequest]) -> list[GenerationRequest]:
    """The requests, every other one of `speculative` left to choose its drafts."""
    return [replace(request, mode=automatic(request.mode)) if rng.random() < 0.5 else request for request in requests]


def automatic(mode: DecodingMode) -> DecodingMode:
    return structs.replace(mode, mrp_steps="auto") if isinstance(mode, Speculative) else mode


def verified(mode: DecodingMode, *, causal: bool = False) -> DecodingMode:
    """The mode that `auto`, and drafts of a causal model, must not be worse than; other params as they are."""
    return mode.plain if isinstance(mode, Speculative) and (causal or mode.mrp_steps == "auto") else mode


def random_sampling(rng: random.Random, temperatures: Sequence[float] = (0, 0, 0.7, 1.2)) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice(temperatures),
        top_k=rng.choice([0, 0, 1, 5, 20]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.3]),
        seed=rng.randrange(2**63),
    )


def random_requests(
    rng: random.Random, checkpoint: Checkpoint, count: int, longest: int = 20
) -> list[GenerationRequest]:
    """Requests of all modes, prompts shorter and longer than a block, aligned and not, some with stop tokens."""
    config = checkpoint.config
    allowed = [token for token in range(config.vocab_size) if token != config.mask_token_id]
    return [
        GenerationRequest(
            f"r{number}",
            tuple(rng.choices(allowed, k=rng.randint(1, longest))),
            random_mode(rng, config),
            random_sampling(rng),
            max_new_tokens=rng.randint(1, longest),
            stop_token_ids=frozenset(rng.sample(allowed, rng.choice([0, 0, 1, 5]))),
        )
        for number in range(count)
    ]


def audit(pages: PrefixCache, leases: Sequence[Lease]) -> None:
    """Every page is free, a live request's own, or a node's; every node has the holders it counts."""
    nodes = list(nodes_of(pages))
    private = [page for lease in leases for page in lease.pages[lease.num_shared :]]
    outdated = [node.outdated for node in nodes if node.outdated is not None]
    everywhere = [*pages._free, *private, *(node.page for node in nodes), *outdated]
    assert len(everywhere) == len(set(everywhere)) == pages.capacity
    for node in nodes:
        readers = [lease for lease in leases if node in lease.nodes]
        assert node.holders == len(readers)
        assert (node in pages._idle) == (not readers)
        assert node.siblings[node.key] is node
        assert node.mrp or not any(child.mrp for child in node.children.values())
        assert {lease.pages[lease.nodes.index(node)] for lease in readers} <= {node.page, node.outdated}
    order = list(pages._idle)
    for index, node in enumerate(order):
        assert not any(child in order[index:] for child in node.children.values())
    assert pages.num_used == pages.capacity - len(pages._free) - len(order)


def nodes_of(pages: PrefixCache) -> Iterator[Any]:
    nodes = list(pages._roots.values())
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        yield node


def events_of(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, list[BlockEvent]]:
    """All events of the requests, decoded together; errors are among them."""
    events: dict[str, list[BlockEvent]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
    return events
