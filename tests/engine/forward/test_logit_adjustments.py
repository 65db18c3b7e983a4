"""Adjusted logits against the definition, number by number, and the Triton kernel over them."""

import numpy as np
import pytest
import torch
from msgspec import structs

from service.decode.block import MASKED, Block
from service.engine import GenerationRequest, SamplingParams
from service.engine.forward.logit_adjustments import adjust_logits
from service.engine.forward.logits_sampler import TorchLogitsSampler, TritonLogitsSampler
from service.engine.forward.partition import FixedShapes
from service.engine.forward.rows import Row
from service.engine.forward.sampling_batch import SamplingBatch
from service.engine.logit_adjuster import LogitAdjuster
from tests.engine.forward.sampled import sample_by
from tests.reference import Standing, plain_adjusted

VOCABULARY, MASK, SIZE = 50, 49, 4
STRONG = SamplingParams(
    0.8, seed=5, repetition_penalty=1.7, frequency_penalty=0.6, presence_penalty=-1.1, min_tokens=7, min_p=0.02,
    logit_bias={3: 2.5, 20: -4.0, 48: -100.0}, bad_words_token_ids=((11,), (5, 12), (6, 13, 14), (30, 5)),
)  # fmt: skip
STOPS = frozenset([1, 2, 10**9])


def request_of(sampling: SamplingParams, continued: int = 0) -> GenerationRequest:
    prompt = (3, 4, 4, 9, 8, 7, 6)
    return GenerationRequest("r", prompt, sampling=sampling, stop_token_ids=STOPS, num_continued=continued)


def cases() -> list[tuple[GenerationRequest, Block, tuple[int, ...]]]:
    """A request, a state of its second block, which begins with three tokens of the prompt, and rescored positions."""
    weak = structs.replace(STRONG, repetition_penalty=0.8, frequency_penalty=-0.5, min_tokens=0, temperature=0.0)
    states = [(8, 7, 6, MASKED), (8, 7, 6, 13), (8, 7, 6, 6)]
    return [
        (request_of(STRONG), Block(states[0]), ()),
        (request_of(SamplingParams(0.7, seed=1)), Block(states[0]), ()),
        (request_of(weak, continued=3), Block(states[0]), ()),
        (request_of(STRONG, continued=2), Block(states[1]), (3,)),
        (request_of(weak, continued=5), Block(states[2]), (3,)),
        (request_of(SamplingParams(bad_words_token_ids=((8, 2),), min_tokens=1)), Block(states[0]), ()),
    ]


def batch_of(requests: list[tuple[GenerationRequest, Block, tuple[int, ...]]]) -> SamplingBatch:
    rows = []
    for request, state, rescore in requests:
        adjuster = LogitAdjuster(request, 3) if request.sampling.adjusts_logits else None
        adjustments = adjuster.adjustments(state, None, rescore) if adjuster else ()
        rows.append(
            Row(state, 1, (), writes_kv=False, sampling=request.sampling, rescore=rescore, adjustments=adjustments)
        )
    return SamplingBatch.from_rows(rows, SIZE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_logit_is_that_of_the_definition(dtype: torch.dtype) -> None:
    """In low precision, too: a small penalty of a large logit is not rounded away."""
    batch = batch_of(cases())
    logits = (8 * torch.randn(len(batch), VOCABULARY, generator=torch.Generator().manual_seed(1))).to(dtype)
    adjusted = adjust_logits(logits.clone(), batch, MASK)
    assert adjusted.dtype == torch.float32
    changed = 0
    for number, (row, position) in enumerate(zip(batch.row.tolist(), batch.position.tolist(), strict=True)):
        request, state, _ = cases()[row]
        expected = logits[number].float()
        if request.sampling.adjusts_logits:
            expected = plain_adjusted(expected, Standing(request, request.prompt_token_ids), state, position)
        torch.testing.assert_close(adjusted[number], expected, rtol=1e-6, atol=1e-6)
        changed += int((adjusted[number] != logits[number].float()).sum())
    assert changed > 30


def test_positions_come_in_groups_and_more_than_once() -> None:
    batch = batch_of(cases())
    logits = torch.randn(len(batch), VOCABULARY, generator=torch.Generator().manual_seed(2))
    together = adjust_logits(logits.clone(), batch, MASK)
    for members, indices in FixedShapes(2, 4).positions(batch):
        padded = torch.from_numpy(np.pad(indices, (0, 4 - len(indices)), mode="edge"))
        alone = adjust_logits(logits[padded], members, MASK)
        assert torch.equal(alone[: len(indices)], together[torch.from_numpy(indices)])


def test_without_adjustments_the_logits_are_the_same_tensor() -> None:
    request = request_of(SamplingParams(0.7, seed=1, min_p=0.5))
    batch, logits = batch_of([(request, Block((8, 7, 6, MASKED)), ())]), torch.randn(1, VOCABULARY).bfloat16()
    assert adjust_logits(logits, batch, MASK) is logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_samples_adjusted_logits(triton_device: str, dtype: torch.dtype) -> None:
    batch = batch_of([case for _ in range(8) for case in cases()])
    logits = (3 * torch.randn(len(batch), VOCABULARY, generator=torch.Generator().manual_seed(3))).to(dtype)
    adjusted = adjust_logits(logits.to(triton_device), batch, MASK)
    kernel, _ = sample_by(TritonLogitsSampler(MASK), adjusted, batch)
    plain, _ = sample_by(TorchLogitsSampler(MASK), adjusted.clone(), batch)
    assert kernel[:, 0].tolist() == plain[:, 0].tolist()
    torch.testing.assert_close(kernel[:, 1:2], plain[:, 1:2], rtol=2e-5, atol=1e-7)
    assert not {11, 12} & set(kernel[batch.row % 6 == 0, 0].tolist())
