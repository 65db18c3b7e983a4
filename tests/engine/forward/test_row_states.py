"""States on the device against the host's rules, positions and noise: by Triton's interpreter, or on CUDA."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from service.decode.block import MASKED, Block
from service.decode.policy import Prediction
from service.decode.rules import LeftToRight, Rule, TopConfidence
from service.engine import SamplingParams
from service.engine.forward.logits_sampler import noise_keys
from service.engine.forward.row_states import StateRows, known_rows, plan_locate, plan_reveal
from service.engine.forward.rows import Anchor, ForwardOutput, Row, tokens_and_positions
from service.engine.forward.sampling_batch import SamplingBatch
from service.model.transfer import PackedTables

MASK = 3
#: Triton's interpreter is slow
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.fixture(scope="module", autouse=True)
def device(triton_device: str) -> str:
    return triton_device


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Rows as an engine names them, and the same rows with their states."""
    length = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64]))
    tokens = st.sampled_from([MASKED, MASKED, 4, 2**31 - 1])
    states = [
        Block(tuple(draw(st.lists(tokens, min_size=length, max_size=length)))) for _ in range(draw(st.integers(1, 4)))
    ]
    outputs = [
        ForwardOutput(torch.empty(0), states=_tensor(states)),
        ForwardOutput(torch.empty(0), states=_tensor(states[::-1])),
    ]
    named, known = list[Row](), list[Row]()
    for number, state in enumerate(states):
        rule: Rule | None = draw(
            st.sampled_from([None, TopConfidence(1), TopConfidence(3), LeftToRight(2), LeftToRight(64)])
        )
        sampling = SamplingParams(draw(st.sampled_from([0.0, 0.7])), seed=draw(st.integers(0, 2**63 - 1)))
        row = Row(state, draw(st.integers(0, 2**20)), (), writes_kv=False, sampling=sampling, rule=rule)
        known.append(row)
        masked = len(state.masked)
        unknown = Block((0,) * (length - masked) + (MASKED,) * masked)
        after = draw(st.sampled_from([None, Anchor(outputs[0], number), Anchor(outputs[1], len(states) - 1 - number)]))
        named.append(row if after is None else row._replace(state=unknown, after=after))
    return named, known


def _tensor(states: list[Block]) -> torch.Tensor:
    return torch.tensor(
        [[MASK if token == MASKED else token for token in state.tokens] for state in states], dtype=torch.int32
    )


@settings(max_examples=40, phases=NO_SHRINKING)
@given(worlds(), st.integers(0, 2**31), st.booleans())
def test_the_device_places_locates_and_reveals_as_the_host(device: str, world, seed: int, shuffled: bool) -> None:
    named, known = world
    length, rng = len(known[0].state.tokens), np.random.default_rng(seed)
    for row in named:
        if row.after is not None:
            row.after.output.states.data = row.after.output.states.to(device)
    assert [row.state for row in known_rows(named, MASK)] == [row.state for row in known]

    tables, batch, expected = (
        PackedTables(torch.device(device)),
        *(SamplingBatch.from_rows(rows, length) for rows in (named, known)),
    )
    states = StateRows(named, tables)
    tokens = tables.add(tokens_and_positions(named, MASK)[0])
    flat, params = tables.add(batch.flat.astype(np.int32)), tables.add(_params(batch))
    locate = plan_locate(batch, flat, params, MASK, tables)
    indices = rng.permutation(len(batch)) if shuffled else np.arange(len(batch))
    reveal = plan_reveal(named, batch, indices, MASK, tables)
    tables.send()
    states.place(tokens.tensor)
    wanted = _tensor([row.state for row in known])
    assert torch.equal(tokens.tensor.cpu(), wanted)
    assert torch.equal(states.states.cpu(), wanted)
    if locate is not None:
        locate(states.states)
    assert flat.tensor.tolist() == expected.flat.tolist()
    assert (params.tensor[:, 2:4].cpu().numpy().astype(np.uint32) == noise_keys(expected)).all()

    confidences = rng.choice(np.float32([0.1, 0.5, 0.5000001, 1.0]), len(batch))
    chosen = rng.integers(4, 2**31 - 1, len(batch))
    values = torch.zeros(len(batch), 4)
    values[:, 0] = torch.from_numpy(chosen[indices]).int().view(torch.float32)
    values[:, 1] = torch.from_numpy(confidences[indices])
    if len(batch):
        reveal(states.states, values.to(device))
    after = list[Block]()
    for index, row in enumerate(known):
        at = expected.row == index
        prediction = Prediction(row.state.masked, chosen[at].tolist(), confidences[at].tolist())
        after.append(row.state.reveal(row.rule(prediction)) if row.rule is not None and row.state.masked else row.state)
    assert torch.equal(states.states.cpu(), _tensor(after))


def _params(batch: SamplingBatch) -> np.ndarray:
    params = np.zeros((len(batch), 6), np.int32)
    params[:, 2:4] = noise_keys(batch).astype(np.uint32).view(np.int32)
    return params
