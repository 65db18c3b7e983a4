"""Replays of a forward on the device against the host's sampler and rules: by Triton's interpreter, or on CUDA."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.decode.canvas import Canvas
from service.decode.modes import Direct
from service.decode.policy import Evaluate, Prediction, Refine
from service.decode.rules import ConfidenceAbove, JointlyAbove, LeftToRight, LowestEntropy, Rule, TopConfidence
from service.engine import SamplingParams
from service.engine.forward.draft_vocabulary import DraftVocabulary, choose_candidates
from service.engine.forward.logits_sampler import TritonLogitsSampler, sample
from service.engine.forward.replays import ReplayBuffers, ReplayTables, SentReplays, can_replay, replay_predictions
from service.engine.forward.row_states import StateTable
from service.engine.forward.rows import Anchor, Candidates, ForwardOutput, Row, tokens_and_positions
from service.engine.forward.sampling_batch import SamplingBatch, SamplingMetadata
from service.engine.request import LogprobsRequest
from service.model.transfer import PackedTables
from tests.rules import served_rules

MASK, EDIT_TOKENS, VOCABULARY, HIDDEN, CANDIDATES, FORWARDS = 3, (5, 6), 90, 24, 11, 4
RULES = (TopConfidence(1), TopConfidence(2), ConfidenceAbove(0.2), LeftToRight(1), LowestEntropy(2.5), None)
SAMPLINGS = tuple(SamplingParams(temperature, seed=2**62 + 7) for temperature in (0.0, 0.7, 1.3))
#: Triton's interpreter is slow
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


def rows_of(length: int, anchor: Anchor, generator: np.random.Generator, *, drafts: bool) -> list[Row]:
    """Rows with some masked positions, of each rule, every other without edit tokens; the last one stores a block."""
    rows = []
    for number, rule in enumerate(RULES):
        tokens = np.where(generator.random(length) < 0.7, MASKED, 4).tolist()
        sampling = SAMPLINGS[number % len(SAMPLINGS)]
        row = Row(
            Block((*tokens[1:], MASKED)), number, (), writes_kv=False, sampling=sampling, entropy=True, drafts=drafts
        )
        first_line = 1 + 2 * number if number % 3 else 0
        rows.append(
            replace(row, anchor=anchor, rule=rule, first_line=first_line, unsampled=EDIT_TOKENS if number % 2 else ())
        )
    return [*rows, replace(rows[0], state=Block((4,) * length), writes_kv=True, sampling=None, drafts=False, rule=None)]


def test_four_positions_step_by_step(triton_device: str) -> None:
    """Two replays over the block `5 _ _ _`, whose rule reveals the most confident pick."""
    device, rule = torch.device(triton_device), TopConfidence(1)
    row = Row(Block((5, *[MASKED] * 3)), 0, (), writes_kv=False, sampling=SamplingParams(), rule=rule, first_line=1)
    tables = PackedTables(device)
    params = tables.add(ReplayTables.of(SamplingMetadata([row], 4), [2], None).params)
    tokens = tables.add(tokens_and_positions([row], MASK)[0])
    tables.send()
    table, replays = StateTable(1, 4, MASK, device), ReplayBuffers.like(params.tensor, 4)

    def replay(picks: dict[int, tuple[int, float]]) -> None:
        """A forward whose sampler draws these tokens with these confidences, by position."""
        drawn = torch.zeros(4, 4)
        for position, (token, confidence) in picks.items():
            drawn[position, 0], drawn[position, 1] = torch.tensor(token).int().view(torch.float32), confidence
        replays.reveal(torch.zeros(1, 4, 1, device=device), tokens.tensor, lambda *_: drawn.to(device), table)

    replay({1: (11, 0.2), 2: (12, 0.9), 3: (13, 0.5)})
    assert tokens.tensor.tolist() == [[5, MASK, 12, MASK]]
    replay({1: (14, 0.8), 3: (15, 0.7)})
    assert tokens.tensor.tolist() == [[5, 14, 12, MASK]]
    assert table.tokens[1].tolist() == [5, 14, 12, MASK]  # where a row ahead reads it

    confidences = replays.values[:2, 0, :, 1].cpu()  # of the masked positions, one after another
    torch.testing.assert_close(confidences, torch.tensor([[0.2, 0.9, 0.5, 0], [0.8, 0.7, 0, 0]]))


def test_the_rules_of_these_tests_are_all_that_the_device_knows() -> None:
    """Another test has the rule of MRP's picks, which depends on earlier forwards."""
    rules = {rule for rule in served_rules() if rule.device_picks is not Rule.device_picks}
    assert {type(rule) for rule in RULES if rule is not None} | {JointlyAbove} == rules


@pytest.mark.parametrize(
    "more",
    [
        {"sampling": SamplingParams(0.7, top_k=3)},
        {"sampling": SamplingParams(0.7, min_p=0.1)},
        {"rescore": (0,)},
        {"mask": np.zeros(12, np.uint8)},
        {"logprobs": LogprobsRequest(1, ())},
        {"adjustments": (None,)},
    ],
)
def test_a_row_that_needs_more_than_the_kernel_is_not_replayed(more: dict[str, Any]) -> None:
    row = Row(Block((4, MASKED)), 0, (), writes_kv=False, sampling=SamplingParams(0.7))
    stored = replace(row, state=Block((4, 4)), sampling=None)
    assert can_replay([row, stored], [1, 1])
    assert not can_replay([row, stored, replace(row, **more)], [1, 1, 1])


def test_replays_have_256_positions_at_most_and_some_that_are_sampled() -> None:
    row = Row(Block((4, MASKED)), 0, (), writes_kv=False, sampling=SamplingParams(0.7))
    assert can_replay([row] * 128, [1] * 128)
    assert not can_replay([row] * 129, [1] * 129)
    assert not can_replay([replace(row, sampling=None)], [1])


@pytest.mark.parametrize(("length", "drafts"), [(1, True), (3, False), (8, True), (8, False), (16, True)])
def test_each_replay_reveals_the_rules_picks(triton_device: str, length: int, drafts: bool) -> None:
    """One of the rows takes part in two forwards only."""
    torch.manual_seed(length)
    device, generator = torch.device(triton_device), np.random.default_rng(length)
    head = torch.randn(VOCABULARY, HIDDEN, device=device)
    head[list(EDIT_TOKENS)] *= 3
    tokens = torch.stack([torch.randperm(VOCABULARY - 4)[:CANDIDATES] + 4 for _ in range(length)]).to(device)
    candidates = Candidates(tokens, torch.randn(length, device=device))
    slots = generator.permutation(length)[None]
    anchor = Anchor(
        ForwardOutput(torch.zeros(1, length, HIDDEN, device=device), candidates, slots, np.ones(1, bool)), 0
    )
    rows = rows_of(length, anchor, generator, drafts=drafts)
    counts = [2, *[FORWARDS] * (len(rows) - 1)]

    vocabulary, tables = DraftVocabulary.for_rows(rows, length, 0, MASK), PackedTables(device)
    whole = SamplingBatch.from_rows(rows, length)
    host = ReplayTables.of(whole.metadata, counts, vocabulary)
    sent_slots = None if host.slots is None else tables.add(host.slots)
    sent = SentReplays(tables.add(host.params), sent_slots, host.candidates)
    states = tables.add(tokens_and_positions(rows, MASK)[0])
    tables.send()
    anchors = torch.zeros(len(rows), length, HIDDEN, device=device)
    replays = ReplayBuffers.like(sent.params.tensor, length, host.candidates, anchors)
    replays.load(sent)
    table = StateTable(len(rows), length, MASK, device)

    def drawn(flat: torch.Tensor, buffers: ReplayBuffers) -> torch.Tensor:
        if buffers.candidates is None:
            return TritonLogitsSampler(MASK).sample_all(flat @ head.T, buffers.positions, EDIT_TOKENS)
        return choose_candidates(flat, head, buffers.candidates, buffers.positions, noise=True)

    rows_then = rows
    for number in range(FORWARDS):
        hidden = torch.randn(len(rows), length, HIDDEN, device=device)
        replays.reveal(hidden, states.tensor, drawn, table)
        assert torch.equal(replays.hidden[number], hidden)
        got = replay_predictions(whole, ForwardOutput(hidden), replays.values[number].cpu().numpy())
        batch = SamplingBatch.from_rows(rows_then, length)
        at = torch.from_numpy(slots[0, batch.position]).to(device)
        read = hidden.flatten(0, 1)[batch.flat]
        if drafts:
            logits = torch.einsum("mh,mch->mc", read, head[candidates.tokens[at]])
            wanted = sample(logits, batch, MASK, Candidates(candidates.tokens[at], candidates.other_weight[at])).cpu()
        else:
            wanted = sample(read @ head.T, batch, MASK).cpu()
        following = list[Row]()
        for index, row in enumerate(rows_then):
            if number >= counts[index]:
                following.append(row)
                continue
            prediction, of_row = got[index].of_positions(row.state.masked), wanted[batch.row == index]
            assert list(prediction.tokens) == of_row[:, 0].contiguous().view(torch.int32).tolist()
            torch.testing.assert_close(torch.tensor(prediction.confidences), of_row[:, 1])
            if row.sampling is not None:
                torch.testing.assert_close(torch.tensor(prediction.entropies), of_row[:, 2], atol=1e-5, rtol=1e-4)
            is_cold = row.sampling is not None and 0 < row.sampling.temperature < 1
            assert len(prediction.token_logprobs) == (len(prediction.positions) if is_cold else 0)
            for logprob, expected in zip(prediction.token_logprobs, of_row[:, 3].tolist(), strict=False):
                assert abs(logprob - expected) < 1e-4
            picks = row.rule(prediction) if row.rule is not None and row.state.masked else ()
            following.append(replace(row, state=row.state.reveal(picks)))
        rows_then = following
        assert states.tensor.tolist() == tokens_and_positions(rows_then, MASK)[0].tolist()
        expected = torch.zeros_like(table.tokens)
        for row, state in zip(rows, states.tensor, strict=True):
            expected[row.line] = state if row.line else 0
        assert torch.equal(table.tokens, expected)
    assert sent.params.tensor[:, 0].tolist() == [FORWARDS] * len(rows)


#: confidences whose products meet thresholds exactly, or nearly
CONFIDENCES = [float(np.float32(x)) for x in (0.0, 0.25, 0.3, 0.5, 0.6, 0.75, 0.9, 0.99, 1.0, 1e-30)]
CONFIDENCES += [float(np.nextafter(np.float32(x), np.float32(0))) for x in (0.5, 0.6, 0.9, 1.0)]


@settings(max_examples=60, phases=NO_SHRINKING, deadline=None)
@given(st.data())
def test_the_device_picks_as_the_policy_of_direct(triton_device: str, data: st.DataObject) -> None:
    """All forms of `direct`: rows of several numbers of MRP's forwards and thresholds, ties, several picks of one."""
    device, length = torch.device(triton_device), data.draw(st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64]))
    rng, few = np.random.default_rng(data.draw(st.integers(0, 2**31))), data.draw(st.booleans())
    modes = data.draw(
        st.lists(
            st.builds(
                Direct,
                st.integers(1, min(4, length)),
                st.sampled_from([None, 0.0, 1e-3, 0.25, 0.3, 0.5, 0.6, 0.9, 1.0]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    blocks = [Block(tuple(np.where(rng.random(length) < 0.8, MASKED, 4).tolist())) for _ in modes]
    blocks = [Block((MASKED,) * length) if block.complete else block for block in blocks]
    canvases = [Canvas(block) for block in blocks]
    policies = [mode.decode(canvas) for mode, canvas in zip(modes, canvases, strict=True)]
    queries = [next(policy) for policy in policies]

    def numbers() -> np.ndarray:
        shape = len(modes), length
        return (
            rng.choice(CONFIDENCES, shape)
            if few
            else 1 - rng.random(shape, np.float32) ** data.draw(st.sampled_from([1, 4, 16]))
        )

    def send(index: int, tokens: np.ndarray, confidences: np.ndarray) -> None:
        masked = canvases[index].block.masked
        columns = [numbers[index, list(masked)].tolist() for numbers in (tokens, confidences)]
        try:
            queries[index] = policies[index].send((Prediction(masked, *columns),))
        except StopIteration:
            queries[index] = Evaluate(())

    for index in range(len(modes)):
        send(index, rng.integers(4, 99, (len(modes), length)), numbers())
    rows = [
        Row(canvas.block, 0, (), writes_kv=False, sampling=SamplingParams(), rule=mode.pace.gate or mode.rule)
        for mode, canvas in zip(modes, canvases, strict=True)
    ]
    tables = PackedTables(device)
    metadata = SamplingMetadata(rows, length)
    params = tables.add(ReplayTables.of(metadata, [mode.mrp_steps for mode in modes], None).params)
    states = tables.add(tokens_and_positions(rows, MASK)[0])
    tables.send()
    replays = ReplayBuffers.like(params.tensor, length)
    for _ in range(max(mode.mrp_steps for mode in modes)):
        tokens, confidences = rng.integers(4, 2**31 - 1, (len(modes), length)), numbers().astype(np.float32)
        drawn = torch.zeros(len(modes) * length, 4)
        drawn[:, 0] = torch.from_numpy(tokens.ravel()).int().view(torch.float32)
        drawn[:, 1] = torch.from_numpy(confidences.ravel())
        replays.reveal(
            torch.zeros(len(rows), length, 1, device=device),
            states.tensor,
            lambda *_, drawn=drawn: drawn.to(device),
            StateTable(1, length, MASK, device),
        )
        for index, query in enumerate(queries):
            if isinstance(query, Refine):
                send(index, tokens, confidences)
        with_states = [replace(row, state=canvas.block) for row, canvas in zip(rows, canvases, strict=True)]
        assert states.tensor.tolist() == tokens_and_positions(with_states, MASK)[0].tolist()
