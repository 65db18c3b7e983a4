"""The Triton kernels of the draft vocabulary against torch's operations: by Triton's interpreter, or on CUDA."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from service.decode.block import MASKED, Block
from service.engine import SamplingParams
from service.engine.forward.draft_vocabulary import DraftVocabulary
from service.engine.forward.logits_sampler import rule_logits
from service.engine.forward.rows import Anchor, ForwardOutput, Row
from service.engine.forward.sampling_batch import SamplingBatch
from service.model.transfer import PackedTables
from tests.engine.forward.sampled import readable

MASK, LENGTH = 3, 4
#: Triton's interpreter is slow
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
samplings = st.builds(SamplingParams, st.sampled_from([0.0, 0.01, 0.6, 1.0, 1.4]), seed=st.integers(0, 2**63 - 1))


@pytest.fixture(scope="module", autouse=True)
def device(triton_device: str) -> str:
    return triton_device


def drafting(sampling: SamplingParams, index: int, anchor: Anchor | None = None) -> Row:
    state = Block((MASKED, 7, MASKED, MASKED))
    return Row(state, index, (), writes_kv=False, sampling=sampling, drafts=True, entropy=True, anchor=anchor)


def filled(rows: list[Row], logits: Tensor, width: int, totals: Tensor | None) -> tuple[DraftVocabulary, SamplingBatch]:
    batch, tables = SamplingBatch.from_rows(rows, LENGTH), PackedTables(logits.device)
    drafts = DraftVocabulary(rows, LENGTH, width, MASK)
    fill = drafts.plan_fill(batch, tables)
    tables.send()
    assert fill is not None
    fill(logits, totals)
    return drafts, batch


@settings(max_examples=12, phases=NO_SHRINKING)
@given(
    st.lists(samplings, min_size=1, max_size=4),
    st.sampled_from([1, 5, 32]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_candidates_and_what_is_chosen_from_them(
    device: str, row_samplings: list[SamplingParams], width: int, dtype: torch.dtype, likely: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [drafting(sampling, number) for number, sampling in enumerate(row_samplings)]
    static = Row(Block((MASKED,) * LENGTH), 9, (), writes_kv=False, sampling=SamplingParams())
    both = [*rows, static] if seed % 2 else rows  # a row that does not draft has no candidates
    count = sum(row.state.tokens.count(MASKED) for row in both)
    logits = (4 * torch.randperm(count * 60, generator=generator).view(count, 60) / (count * 10.0)).to(dtype)
    logits[:, MASK] = 30.0 if likely else -30.0  # the likeliest or the least likely, never a candidate
    totals = rule_logits(logits.float(), SamplingBatch.from_rows(both, LENGTH)).logsumexp(-1)
    plain, _ = filled(both, logits.clone(), width, None)
    drafts, _ = filled(both, logits.to(device), width, totals.to(device))
    hidden = torch.randn(len(both), LENGTH, 48, generator=generator).to(dtype)
    outputs = plain.output(hidden), drafts.output(hidden.to(device))
    candidates = [output.candidates for output in outputs]
    assert candidates[0] is not None
    assert candidates[1] is not None
    if dtype == torch.float32:  # rounded logits are often equal
        assert candidates[0].tokens.sort().values.tolist() == candidates[1].tokens.sort().values.tolist()
    assert not (candidates[1].tokens == MASK).any()
    # one less the candidates' probability loses digits where that is nearly 1
    drafted = np.flatnonzero(np.isin(SamplingBatch.from_rows(both, LENGTH).row, range(len(rows))))
    kept_totals = totals[torch.from_numpy(drafted)]
    shares = [(each.other_weight.cpu() - kept_totals).exp() for each in candidates]
    torch.testing.assert_close(shares[1], shares[0], rtol=1e-4, atol=1e-5)
    assert np.array_equal(outputs[0].slots, outputs[1].slots)

    anchored = [drafting(row.sampling, row.index, Anchor(outputs[1], number)) for number, row in enumerate(rows)]
    batch, head = SamplingBatch.from_rows(anchored, LENGTH), torch.randn(60, 48, generator=generator).to(dtype)
    results = []
    for kernels in (False, True):
        tables = PackedTables(torch.device(device))
        later = DraftVocabulary(anchored, LENGTH, width, MASK)
        sample = later.plan_sample(batch, tables, head.to(device), None, kernels=kernels)
        tables.send()
        results.append(readable(sample(hidden.flatten(0, 1).to(device)).cpu()))
    if dtype == torch.float32:
        assert results[0][:, 0].tolist() == results[1][:, 0].tolist()
        torch.testing.assert_close(results[1], results[0], rtol=2e-4, atol=2e-5)
    assert later.output(hidden).candidates is outputs[1].candidates  # later forwards share them


def test_rows_of_several_forwards_share_a_forward(device: str) -> None:
    sampling, hidden = SamplingParams(), torch.randn(2, LENGTH, 8)
    outputs = []
    for _ in range(2):
        logits = torch.randn(6, 30)
        drafts, _ = filled([drafting(sampling, 0), drafting(sampling, 1)], logits, 4, None)
        outputs.append(drafts.output(hidden))
    anchors = Anchor(outputs[1], 1), Anchor(outputs[0], 0), Anchor(ForwardOutput(hidden), 0)
    rows = [drafting(sampling, index, anchor) for index, anchor in enumerate(anchors)]
    drafts, tables = DraftVocabulary(rows, LENGTH, 4, MASK), PackedTables(torch.device("cpu"))
    fill = drafts.plan_fill(SamplingBatch.from_rows(rows, LENGTH).select(np.arange(6, 9)), tables)
    tables.send()
    assert (drafts.present.tolist(), drafts.missing.tolist()) == ([True, True, False], [False, False, True])
    fill(logits := torch.randn(3, 30), None)
    output, masked = drafts.output(hidden), [0, 2, 3]
    for row, anchor in enumerate(anchors[:2]):
        earlier = anchor.output
        mine, theirs = output.slots[row][masked], earlier.slots[anchor.row][masked]
        assert torch.equal(output.candidates.tokens[mine], earlier.candidates.tokens[theirs])
        assert torch.equal(output.candidates.other_weight[mine], earlier.candidates.other_weight[theirs])
    logits[:, MASK] = -torch.inf
    likeliest = logits.topk(4).indices.sort().values
    assert output.candidates.tokens[output.slots[2][masked]].sort().values.tolist() == likeliest.tolist()
