"""Step maps of whole answers: against a reference that counts them itself, and drafts against the verified mode."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from msgspec import structs

from service.constraints.constraint import Constraint
from service.decode.block import MASKED, Block
from service.decode.canvas import Canvas
from service.decode.mode import DecodingMode, RuleMode
from service.decode.modes import Direct, Dynamic, Edit, Entropy, Remask, Sequential, Speculative, Static
from service.decode.policy import Evaluate
from service.decode.step_map import TokenStep
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.costs import StepCosts
from service.model import Checkpoint
from tests.engine.constrained import PAIRS, constrained, engine_of
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS, FREE_ROWS, automatic, drafted, random_sampling
from tests.reference import Reference
from tests.thinned import fast_rows
from tests.tiny import ALL_NAMES, EXPERTS_NAME, GOLDEN_NAMES, golden

RULES: tuple[RuleMode, ...] = (
    Static(), Static(3), Dynamic(0.02), Dynamic(0.3), Sequential(), Sequential(2, 6.0), Entropy(3.0), Entropy(12.0)
)  # fmt: skip
EDITS: tuple[DecodingMode, ...] = (Edit(0.02, 0.0, 1), Edit(0.3, 0.1, 1))
MRP_MODES: tuple[DecodingMode, ...] = (Direct(1), Direct(3), Direct(3, 0.02), Remask(0.02), Remask(0.3))


class CountingReference(Reference):
    """Decodes as `Reference`, and writes down what each prediction changed in the block. It reads no steps."""

    def step_map(self, request: GenerationRequest) -> list[TokenStep]:
        self._number, self._map = 0, list[TokenStep]()
        decoded = self.generate(request)
        return self._map[: len(decoded.token_ids) + (decoded.finish_reason == "stop")]

    def decode(
        self, clean: Sequence[int], head: Sequence[int], params: DecodingMode, sampling: SamplingParams
    ) -> tuple[Canvas, int]:
        canvas = Canvas(Block((*head, *[MASKED] * (self.config.block_size - len(head)))), in_order=self.config.causal)
        policy, forwards, filled = self.policy(params, canvas), 0, dict[int, TokenStep]()
        query = next(policy)
        while True:
            before, start = canvas.block.tokens, len(clean)
            if isinstance(query, Evaluate):
                forwards += 1
                [state] = query.states
                hidden, rescore, edit = self.evaluate(clean, state), (), query.edit
            else:
                state, rescore, edit = query.state, query.rescore, ()
                hidden = self.refine(clean, state, query.after.handle)
            with torch.inference_mode():
                logits = self.logits(hidden).double() / (sampling.temperature or 1.0)
            scores = logits.log_softmax(-1)
            try:
                query, ended = policy.send((self.read(hidden, state, start, sampling, rescore, edit=edit),)), False
            except StopIteration:
                ended = True
            changed = [position for position, token in enumerate(canvas.block.tokens) if token != before[position]]
            self._number += any(canvas.block.tokens[position] != MASKED for position in changed)
            for position in changed:
                token = canvas.block.tokens[position]
                filled.pop(position, None)
                if token != MASKED:
                    filled[position] = TokenStep(token, self._number, float(scores[position, token]))
            if ended:
                self._map += [filled[position] for position in sorted(filled)]
                return canvas, forwards


def requests(name: str, mode: DecodingMode, temperature: float, count: int) -> list[GenerationRequest]:
    """Requests whose prompts end anywhere in a block. Some have top-k and top-p, some many stop tokens."""
    rng, size = random.Random(f"{name} {temperature}"), golden(name, torch.float64).config.block_size
    return [
        GenerationRequest(
            f"{number}",
            tuple(rng.choices(range(1, 500), k=rng.randint(1, 2 * size))),
            mode,
            random_sampling(rng, [temperature]),
            rng.randint(size, 3 * size),
            frozenset(range(number, 512, (512, 9, 3)[number % 3])),
        )
        for number in range(count)
    ]


def close(step_map: Sequence[TokenStep], expected: Sequence[TokenStep], tolerance: float = 2e-6) -> None:
    assert [token[:2] for token in step_map] == [token[:2] for token in expected]
    assert [token.logprob for token in step_map] == pytest.approx([token.logprob for token in expected], abs=tolerance)


@pytest.mark.parametrize(
    ("name", "temperature"),
    fast_rows(
        lambda name, temperature: (name, temperature) in {(GOLDEN_NAMES[1], 0.0), (GOLDEN_NAMES[0], 0.9)},
        [(name, temperature) for name in ALL_NAMES for temperature in (0.0, 0.9)],
    ),
)
def test_of_every_mode_as_a_reference_counts_it(name: str, temperature: float) -> None:
    checkpoint = golden(name, torch.float64)
    reference, engine = CountingReference(checkpoint), Engine(checkpoint, EngineConfig(kv_cache_tokens=8192))
    stopped = several = 0
    config = checkpoint.config
    edits = () if config.causal or config.edit_token_ids else EDITS  # insertions: test_insertions.py
    for mode in (*RULES, *edits, *(MRP_MODES if checkpoint.mrp else ())):
        for request, completion in zip(
            made := requests(name, mode, temperature, 3), engine.generate(made), strict=True
        ):
            close(completion.step_map, reference.step_map(request))
            numbers = [token.step for token in completion.step_map]
            several += len(set(numbers)) < len(numbers)
            stopped += len(numbers) > len(completion.token_ids)
    assert stopped
    assert several


@pytest.mark.parametrize(
    ("name", "temperature", "costs"),
    fast_rows(
        lambda name, temperature, costs: costs is FREE_ROWS and (name, temperature) in {
            (GOLDEN_NAMES[0], 0.7), (GOLDEN_NAMES[1], 0.0), (GOLDEN_NAMES[2], 1.2), (EXPERTS_NAME, 0.7)
        },
        [
            (name, temperature, costs)
            for name in ALL_NAMES
            for temperature in (0.0, 0.05, 0.7, 1.2)
            for costs in (FREE_ROWS, CHEAP_ROWS, DEAR_ROWS)
        ],
    ),
)  # fmt: skip
def test_of_drafts_is_the_verified_modes(name: str, temperature: float, costs: StepCosts) -> None:
    """In every rule, for chains, trees and drafts that the engine chooses, in one batch."""
    checkpoint, rng = golden(name, torch.float64), random.Random(name)
    deps = EngineDeps(costs=costs if checkpoint.mrp else StepCosts(costs.backbone))
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=16384, max_rows=96), deps=deps)
    plain = [
        replace(request, request_id=f"{rule} {request.request_id}")
        for rule in RULES
        for request in requests(name, rule, temperature, 2)
    ]
    drafts = [
        replace(request, request_id=f"{request.request_id} {kind}", mode=params)
        for request in plain
        for kind, params in enumerate(drafts_for(rng, request.mode, checkpoint))
    ]
    completions = engine.generate([*plain, *drafts])
    wanted = {completion.request_id: completion for completion in completions[: len(plain)]}
    covered = 0
    for completion in completions[len(plain) :]:
        expected = wanted[completion.request_id.rpartition(" ")[0]]
        assert completion.token_ids == expected.token_ids
        close(completion.step_map, expected.step_map)
        covered += any(len(step.sizes) > 1 for block in completion.blocks for step in block.steps)
    assert covered or costs is DEAR_ROWS


def drafts_for(rng: random.Random, rule: RuleMode, checkpoint: Checkpoint) -> list[DecodingMode]:
    """Chains or trees, and drafts that the engine chooses. Without MRP: trees of the backbone's last logits."""
    size = checkpoint.config.block_size
    if checkpoint.mrp is None:
        trees = [Speculative(0, states, verify=rule.name, **structs.asdict(rule)) for states in (1, size)]
        return [*trees, automatic(trees[0])]
    made = [drafted(rng, rule, size) for _ in range(2)]
    return [*made, automatic(made[0])]


@pytest.mark.parametrize(("rule", "drafts"), PAIRS)
def test_of_an_answer_with_a_grammar(rule: DecodingMode, drafts: Sequence[DecodingMode]) -> None:
    """Forced tokens take no step. A forward that covers several steps may have forced tokens between them."""
    name, between = GOLDEN_NAMES[0], 0
    engine, constraint = engine_of(name, FREE_ROWS), Constraint.regex("so (yes|no|nor), [a-f]{2,9} or [0-9]{1,4} end")
    modes = [rule, *(mode for mode in drafts if isinstance(mode, Speculative))]
    for seed in range(4):
        plain, *verified = engine.generate(
            constrained(name, str(index), constraint, mode, SamplingParams(0.7, seed=seed), 60)
            for index, mode in enumerate(modes)
        )
        assert plain.stats.forced_tokens
        assert len(plain.step_map) == len(plain.token_ids) + (plain.finish_reason == "stop")
        for completion in verified:
            assert completion.token_ids == plain.token_ids
            close(completion.step_map, plain.step_map, 1e-4)
            steps = [step for block in completion.blocks for step in block.steps]
            between += sum(len(before.sizes) > 1 and step.kind == "forced" for before, step in pairwise(steps))
    assert between or len(modes) == 2


def test_in_a_deterministic_engine_log_probabilities_are_equal_to_the_bit() -> None:
    checkpoint = golden(GOLDEN_NAMES[1])
    config = EngineConfig(kv_cache_tokens=8192, deterministic=True)
    plain = requests(GOLDEN_NAMES[1], Static(), 0.9, 6)
    [*alone] = [Engine(checkpoint, config).generate([request])[0].step_map for request in plain]
    drafts = [replace(request, mode=Speculative(3)) for request in plain]
    assert [completion.step_map for completion in Engine(checkpoint, config).generate(drafts)] == alone
