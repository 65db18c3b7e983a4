"""States on the device against the host's rules, positions and noise: by Triton's interpreter, or on CUDA."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from service.decode.block import MASKED, Block, Pick
from service.decode.drafts import NUM_STEPS, numbers_by_rule
from service.decode.policy import Prediction
from service.decode.rules import ConfidenceAbove, LeftToRight, TopConfidence
from service.engine import SamplingParams
from service.engine.forward.logits_sampler import noise_keys
from service.engine.forward.row_states import StateTable, lines_of, row_params, states_after
from service.engine.forward.rows import LINES, Row, tokens_and_positions
from service.engine.forward.sampling_batch import SamplingBatch
from service.model.layer_ops import PagedAttend
from service.model.transfer import PackedTables
from tests.rules import device_rules

MASK = 3
#: numbers beside thresholds and bounds of the rules
EDGES = np.array(
    [n for x in (0.1, 0.3, 0.5, 0.9, 1.0) for n in (np.nextafter(np.float32(x), np.float32(0)), np.float32(x))]
)
#: Triton's interpreter is slow
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.fixture(scope="module", autouse=True)
def device(triton_device: str) -> str:
    return triton_device


def test_four_positions_step_by_step(device: str) -> None:
    """The block `7 _ _ 9` is in line 1. The host only knows that it has three masks at most."""
    table, tables = StateTable(1, 4, MASK, torch.device(device)), PackedTables(torch.device(device))
    table.tokens[1] = torch.tensor([7, MASK, MASK, 9])
    rule, sampling = TopConfidence(1), SamplingParams(0.7, seed=5)
    row = Row(
        Block((0, *[MASKED] * 3)), 2, (), writes_kv=True, sampling=sampling, rule=rule, on_device=True, first_line=1
    )
    batch = SamplingBatch.from_rows([row], 4)
    tokens, lines = tables.add(tokens_and_positions([row], MASK)[0]), tables.add(lines_of([row]))
    positions, params = tables.add(batch.flat.astype(np.int32)), tables.add(_params(batch))
    planned = table.plan(batch, tables)
    locate, reveal = planned.plan_locate(batch, positions, params, tables), planned.plan_reveal(np.arange(3), tables)
    tables.send()

    pages = Pages(1, device)
    table.place_states(tokens.tensor, lines.tensor, pages)
    assert tokens.tensor.tolist() == [[7, MASK, MASK, 9]]
    assert pages.tables[1].tolist() == [-1]  # it is not complete, so its page is not written

    locate()
    assert positions.tensor.tolist()[:2] == [1, 2]  # there is no third mask, so nothing reads the third result

    drawn = torch.tensor([[21, 0.4, 0, 0], [22, 0.6, 0, 0], [23, 0.9, 0, 0]])
    drawn[:, 0] = drawn[:, 0].int().view(torch.float32)
    reveal(drawn.to(device))
    assert table.tokens[1].tolist() == [7, MASK, 22, 9]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Row], list[Row], int | None]:
    """Rows as an engine names them, and the same rows with their states. Some are supposed to have more masks.

    Or outputs are shifted: then the size of a sub-block comes last, the host knows the number of masks, and some rows
    read the next block's first position.
    """
    length = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64]))
    sub_block = draw(st.sampled_from([None, None, *(size for size in (1, 2, 4, 8) if length % size == 0)]))
    tokens = st.sampled_from([MASKED, MASKED, 4, 2**31 - 1])
    blocks = st.one_of(st.lists(tokens, min_size=length, max_size=length), st.just([4] * length))
    states = [Block(tuple(draw(blocks))) for _ in range(draw(st.integers(1, 4)))]
    if sub_block is not None:
        states = [_in_sub_blocks(state, sub_block) for state in states]
    named, with_states = list[Row](), list[Row]()
    for number, state in enumerate(states):
        sampling = SamplingParams(draw(st.sampled_from([0.0, 0.7])), seed=draw(st.integers(0, 2**63 - 1)))
        index, rule = draw(st.integers(0, 2**20)), draw(st.one_of(st.none(), device_rules()))
        first_line = 1 + LINES * number
        row = Row(state, index, (), writes_kv=state.complete, sampling=sampling, rule=rule, first_line=first_line)
        if sub_block is not None and state.complete:
            row = replace(row, opens_next=draw(st.booleans()), rule=None)
        with_states.append(row)
        if draw(st.booleans()):
            masked = draw(st.integers(len(state.masked), length)) if sub_block is None else len(state.masked)
            supposed = Block((0,) * (length - masked) + (MASKED,) * masked)
            row = replace(row, state=supposed, on_device=True, writes_kv=True)
        named.append(row)
    return named, with_states, sub_block


def _in_sub_blocks(state: Block, size: int) -> Block:
    """The state with its first token, and masks alone to the right of the leftmost sub-block that has any."""
    tokens = (4, *state.tokens[1:])
    end = (tokens.index(MASKED) // size + 1) * size if MASKED in tokens else len(tokens)
    return Block(tokens[:end] + (MASKED,) * (len(tokens) - end))


def _tensor(states: list[Block]) -> torch.Tensor:
    tokens = [[MASK if token == MASKED else token for token in state.tokens] for state in states]
    return torch.tensor(tokens, dtype=torch.int32)


class Pages(PagedAttend):
    """The tables of a forward in which all rows are final."""

    def __init__(self, rows: int, device: str) -> None:
        self.tables = torch.ones(rows, dtype=torch.int32, device=device), torch.arange(rows, device=device).int()

    @property
    def final_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tables


@settings(max_examples=30, phases=NO_SHRINKING)
@given(worlds(), st.integers(0, 2**31), st.booleans())
def test_the_device_places_locates_and_reveals_as_the_host(device: str, world, seed: int, shuffled: bool) -> None:
    named, with_states, sub_block = world
    length, rng = len(with_states[0].state.tokens), np.random.default_rng(seed)
    table = StateTable(len(named), length, MASK, torch.device(device))
    wanted = _tensor([row.state for row in with_states])
    for row, state in zip(named, wanted, strict=True):
        if row.on_device:
            table.tokens[row.line] = state
    assert table.with_states(named) == with_states

    tables, batch = PackedTables(torch.device(device)), SamplingBatch.from_rows(named, length, sub_block)
    lines, pages = lines_of(named), Pages(len(named), device)
    sent_lines = tables.add(np.zeros(len(named), np.int32) if lines is None else lines)
    tokens = tables.add(tokens_and_positions(named, MASK)[0])
    flat, params = tables.add(batch.flat.astype(np.int32)), tables.add(_params(batch))
    planned = table.plan(batch, tables)
    locate = planned and planned.plan_locate(batch, flat, params, tables)
    slots, drafts = rng.permutation(len(named) * length).reshape(-1, length), tables.add(_params(batch))
    locate_drafts = planned and planned.plan_locate(batch, slots, drafts, tables)
    indices = rng.permutation(len(batch)) if shuffled else np.arange(len(batch))
    reveal = planned and planned.plan_reveal(indices, tables)
    tables.send()
    table.place_states(tokens.tensor, sent_lines.tensor, pages)
    assert torch.equal(tokens.tensor.cpu(), wanted)
    assert torch.equal(_states_of(table, named), wanted[[row.line > 0 for row in named]])
    final = [then.state.complete or not row.on_device for row, then in zip(named, with_states, strict=True)]
    assert pages.tables[0].tolist() == final
    assert pages.tables[1].tolist() == [page if stays else -1 for page, stays in enumerate(final)]

    if locate is not None:
        locate()
    expected = SamplingBatch.from_rows(with_states, length, sub_block)
    counts = np.bincount(expected.row, minlength=len(with_states)).tolist()
    there = np.concatenate([np.flatnonzero(batch.row == i)[:count] for i, count in enumerate(counts)])
    assert flat.tensor.cpu().numpy()[there].tolist() == expected.flat.tolist()
    assert (params.tensor[:, 2:4].cpu().numpy().astype(np.uint32)[there] == noise_keys(expected)).all()
    if locate_drafts is not None:
        locate_drafts()
        slot = slots[expected.row, np.minimum(expected.position, length - 1)]
        by_slot = np.concatenate([noise_keys(expected), slot[:, None], expected.flat[:, None]], 1)
        unknown = batch.unknown[there]
        assert (drafts.tensor[:, 2:].cpu().numpy().astype(np.uint32)[there] == by_slot)[unknown].all()

    few = rng.integers(0, 2) == 1  # ties
    confidences, entropies = (
        rng.choice(EDGES, len(batch)) if few else rng.random(len(batch), np.float32) for _ in "ab"
    )
    chosen = rng.integers(4, 2**31 - 1, len(batch))
    values = torch.zeros(len(batch), 4)
    values[:, 0] = torch.from_numpy(chosen[indices]).int().view(torch.float32)
    values[:, 1], values[:, 2] = torch.from_numpy(confidences[indices]), torch.from_numpy(entropies[indices])
    if planned is not None and len(batch):
        reveal(values.to(device))
    after, end = list[Block](), 0
    for row, count in zip(with_states, counts, strict=True):
        start, end = end, end + count
        at = there[start:end]
        columns = chosen[at].tolist(), confidences[at].tolist()
        prediction = Prediction(row.state.masked[:count], *columns, entropies=entropies[at].tolist())
        after.append(row.state.reveal(row.rule(prediction)) if row.rule is not None and len(at) else row.state)
    assert torch.equal(_states_of(table, named), _tensor(after)[[row.line > 0 for row in named]])
    assert not table.tokens[0].any()


def _states_of(table: StateTable, rows: list[Row]) -> torch.Tensor:
    """The states that the table has of rows."""
    return table.tokens[[row.line for row in rows if row.line]].cpu()


def _params(batch: SamplingBatch) -> np.ndarray:
    params = np.zeros((len(batch), 6), np.int32)
    params[:, 2:4] = noise_keys(batch).astype(np.uint32).view(np.int32)
    return params


# --- drafts of the device ------------------------------------------------------------------------------------


@st.composite
def drafted_worlds(draw: st.DrawFn) -> list[Row]:
    """Rows with their states: of each request a state, up to three drafts of it, and perhaps the next block's row."""
    length = draw(st.sampled_from([2, 4, 8, 16]))
    tokens, rows = st.sampled_from([MASKED, MASKED, MASKED, 4]), list[Row]()
    counts = st.integers(1, 3)
    rules = st.one_of(st.builds(TopConfidence, counts), st.builds(LeftToRight, counts), st.just(ConfidenceAbove(0.4)))
    for number in range(draw(st.integers(1, 3))):
        sampling, index = SamplingParams(draw(st.sampled_from([0.0, 0.7])), seed=number), draw(st.integers(0, 99))
        state = Block(tuple(draw(st.one_of(st.lists(tokens, min_size=length, max_size=length), st.just([4] * length)))))
        row = Row(
            state, index, (), writes_kv=False, sampling=sampling, rule=draw(rules), first_line=1 + LINES * number,
            drafts_follow=draw(st.booleans()),
        )  # fmt: skip
        rows.append(row)
        if not row.drafts_follow:
            continue
        numbers = draw(st.sampled_from(numbers_by_rule(row.rule)))
        rows[-1] = replace(row, num_drafts=len(numbers))
        for draft in numbers:
            masked, picks = state.masked, row.rule.num_picks or 1
            steps = [masked[step * picks : (step + 1) * picks] for step in range(NUM_STEPS) if draft >> step & 1]
            drafted = state.reveal(Pick(p, 5, 0.5) for positions in steps for p in positions)
            rows.append(replace(row, state=drafted, rule=None, drafts_follow=False, draft=draft, on_device=True))
        if draw(st.booleans()):
            rows.append(replace(row, state=Block((MASKED,) * length), index=index + 1))
    return rows


@settings(max_examples=40, phases=NO_SHRINKING)
@given(drafted_worlds(), st.integers(0, 2**31), st.booleans())
def test_the_device_verifies_its_drafts_and_drafts_anew_as_the_host(
    device: str, rows: list[Row], seed: int, replay: bool
) -> None:
    """Tokens are few and confidences tie, so drafts are often passed."""
    length, rng = len(rows[0].state.tokens), np.random.default_rng(seed)
    table = StateTable(len(rows), length, MASK, torch.device(device))
    wanted = _tensor([row.state for row in rows])
    for row, state in zip(rows, wanted, strict=True):
        table.tokens[row.line] = state
    batch = SamplingBatch.from_rows(rows, length)
    chosen, confidences = rng.choice([5, 5, 5, 6], len(batch)), rng.choice(EDGES[-3:], len(batch))
    values = torch.zeros(len(batch), 4)
    values[:, 0], values[:, 1] = torch.from_numpy(chosen).int().view(torch.float32), torch.from_numpy(confidences)
    if replay:
        drawn = torch.zeros(len(rows) * length, 4)
        drawn[torch.from_numpy(batch.flat)] = values
        params = torch.from_numpy(row_params(batch.metadata, [1] * len(rows))).to(device)
        results = torch.zeros(1, len(rows), length, 4, device=device)
        table.reveal_replay(wanted.clone().to(device), drawn.to(device), params, results)
    else:
        tables = PackedTables(torch.device(device))
        planned = table.plan(batch, tables)
        reveal = planned.plan_reveal(np.arange(len(batch)), tables)
        tables.send()
        reveal(values.to(device))
    predictions = [
        Prediction(
            row.state.masked,
            chosen[batch.row == number].tolist(),
            confidences[batch.row == number].tolist(),
            entropies=[0.0] * len(row.state.masked),
        )
        for number, row in enumerate(rows)
    ]
    after = states_after(rows, predictions)
    for line, state in after.items():
        assert table.tokens[line].tolist() == _tensor([state])[0].tolist(), (line, rows)
    for row in rows:
        if row.drafts_follow:
            assert row.line in after
    assert not table.tokens[0].any()
