"""The Triton kernel that reads logits against torch's operations: by its interpreter, or on CUDA if there."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from service.engine.forward import logits_sampler, sampling_kernels
from service.engine.forward.logits_sampler import (
    TorchLogitsSampler,
    TritonLogitsSampler,
    choose_tokens,
    entropies,
    rule_logits,
)
from service.engine.request import SamplingParams
from tests.engine.forward.sampled import Position, batch_of, sample_by


@pytest.fixture(scope="module", autouse=True)
def device(triton_device: str) -> str:
    return triton_device


samplings = st.builds(
    SamplingParams,
    st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0, 1.3]),
    st.sampled_from([1.0, 1.0, 0.8]),
    st.sampled_from([0, 0, 5]),
    seed=st.integers(0, 2**63 - 1),
    min_p=st.sampled_from([0.0, 0.0, 5e-324, 0.02, 0.3, 1.0]),
)


@settings(max_examples=8)
@given(
    st.sampled_from([(2, 64), (7, 64), (64, 64), (500, 64), (500, 1024), (1024, 1024), (2500, 1024)]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.lists(st.tuples(samplings, st.booleans()), min_size=1, max_size=6),
    st.integers(0, 2**31),
)
def test_token_confidence_and_entropy(
    device: str, sizes: tuple[int, int], dtype: torch.dtype, positions, seed: int
) -> None:
    """`sizes`: the vocabulary, and the tokens of a program. `positions`: samplings, and whether each is rescored."""
    width, part = sizes
    generator = torch.Generator().manual_seed(seed)
    made = 4 * torch.randn(len(positions), width + 3, generator=generator)
    logits = made.to(dtype).to(device)[:, :width]  # a row does not begin where the last one ends
    mask = seed % width
    logits[:, mask] = 20.0  # the likeliest, and never chosen

    def other(number: int) -> int:
        return (mask + 1 + number % (width - 1)) % width

    reads = batch_of(*(
        Position(sampling, 7 * number, number % 3, other(number) if judged else None)
        for number, (sampling, judged) in enumerate(positions)
    ))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logits_sampler, "_KERNEL_PART", part)
        sampled, weights = sample_by(TritonLogitsSampler(mask), logits, reads)
    wanted, _ = sample_by(TorchLogitsSampler(mask), logits.clone(), reads)
    assert sampled[:, 0].tolist() == wanted[:, 0].tolist()
    torch.testing.assert_close(sampled[:, 1], wanted[:, 1], rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(sampled[:, 2], wanted[:, 2], rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(sampled[:, 3], wanted[:, 3], rtol=2e-5, atol=2e-5)
    assert weights is not None
    torch.testing.assert_close(weights, rule_logits(logits.float(), reads).logsumexp(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.3])
def test_numbers_do_not_depend_on_the_number_of_programs(device: str, temperature: float) -> None:
    """One program reads ten parts, then ten programs read a part each: equal to the bit, alone and beside others.

    A program of many parts has noise only where a token can still win. The logits of the last position are equal.
    """
    logits = 4 * torch.randn(3, 600, generator=torch.Generator().manual_seed(5)).to(device)
    logits[2] = 1.0
    min_p = 0.01, 0.0, 0.0
    batch = batch_of(*(Position(SamplingParams(temperature, seed=seed, min_p=min_p[seed])) for seed in range(3)))
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logits_sampler, "_KERNEL_PART", 64)
        for programs in (1, 10, 30):
            patch.setattr(logits_sampler, "_PROGRAMS", programs)
            results.append(sample_by(TritonLogitsSampler(0), logits, batch))
        alone, _ = sample_by(TritonLogitsSampler(0), logits[1:2], batch.select(np.array([1])))
    assert all(torch.equal(results[0][0], values) for values, _ in results)
    assert all(torch.equal(results[0][1], total) for _, total in results)
    assert torch.equal(alone[0], results[0][0][1])
    wanted, _ = sample_by(TorchLogitsSampler(0), logits.clone(), batch)
    assert results[0][0][:, 0].tolist() == wanted[:, 0].tolist()


def test_a_position_that_is_not_read_costs_no_program(device: str) -> None:
    """Its program does not count itself, and the positions beside it have the same numbers."""
    logits, sampler = torch.randn(3, 90, generator=torch.Generator().manual_seed(5)).to(device), TritonLogitsSampler(0)
    params = torch.zeros(3, 6, dtype=torch.int32, device=device)
    params[:, 0], params[:, 4] = torch.ones(1).view(torch.int32).item(), -1
    every = sampler.sample_all(logits, params.clone())
    params[1, 1] = -1
    drawn = sampler.sample_all(logits, params)
    assert torch.equal(drawn[[0, 2]], every[[0, 2]])
    assert params[:, 1].tolist() == [1, -1, 1]


@triton.jit
def _write_noise(words, out, limits, COUNT: tl.constexpr):  # noqa: N803 - a constant of Triton
    index = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    word = tl.load(words + index).to(tl.uint32, bitcast=True)
    tl.store(out + index, sampling_kernels.gumbel(word))
    tl.store(limits + index, sampling_kernels.noise_limit(word))


def words_of_all_shares(count: int) -> Iterator[np.ndarray]:
    """Words in arrays of `count`, one for each float32 that a word becomes, but for the largest."""
    for start in range(0, 1 << 24, count):
        yield np.arange(start, start + count, dtype=np.uint32)
    for shift in range(1, 9):
        for start in range(1 << 23, 1 << 24, count):
            yield np.arange(start, start + count, dtype=np.uint32) << np.uint32(shift)


def largest_errors(device: str, words: np.ndarray) -> tuple[float, float]:
    """The largest errors of the kernel's noise and of torch's, against the logarithms of float64.

    The limit of a word is above its noise, and near it where the noise is high.
    """
    out, limits = torch.empty(2, len(words), device=device)
    count = min(len(words), 1 << 16)
    _write_noise[len(words) // count,](torch.from_numpy(words.view(np.int32)).to(device), out, limits, count)
    assert (limits > out).all()
    assert not ((limits - out > 0.1) & (out > 3)).any()
    assert out.max() < sampling_kernels.MOST_NOISE.value
    share = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    share = torch.from_numpy(np.minimum(share, np.float32(1 - 2.0**-24)))
    exact = -(-torch.log1p(-share.double())).log()
    errors = [(noise.cpu().double() - exact).abs().max().item() for noise in (out, -(-torch.log1p(-share)).log())]
    return errors[0], errors[1]


def test_noise_in_float32_is_as_exact_as_torchs(device: str) -> None:
    ends = [np.concatenate([part[:8], part[-8:]]) for part in words_of_all_shares(1 << 21)]
    words = np.concatenate([*ends, np.arange(2**32 - 128, 2**32).astype(np.uint32)])
    kernel, reference = largest_errors(device, np.resize(words, 1 << 10))
    assert 1e-8 < reference < 1.1e-6
    assert kernel < 1.1e-6


@pytest.mark.slow
def test_noise_in_float32_is_as_exact_as_torchs_for_every_share(device: str) -> None:
    errors = [largest_errors(device, words) for words in words_of_all_shares(1 << 20)]
    kernel, reference = (max(values) for values in zip(*errors, strict=True))
    assert kernel < 1.1e-6
    assert reference < 1.1e-6


def test_of_equal_logits_the_first_token_is_chosen(device: str) -> None:
    logits = torch.zeros(2, 300, device=device)
    logits[1, [40, 200, 7]] = 1.0
    sampled, _ = sample_by(TritonLogitsSampler(0), logits, batch_of(Position(), Position()))
    assert sampled[:, 0].tolist() == [1, 7]


def test_min_p_counts_from_the_likeliest_token_that_may_be_chosen(device: str) -> None:
    """By the mask token's probability no other token would be left, and by the likeliest one only two are."""
    logits = torch.full((48, 300), -3.0, device=device)
    logits[:, 0], logits[:, 4], logits[:, 250] = 20.0, 1.0, 0.9
    sampling = [SamplingParams(1.5, seed=seed, min_p=0.5) for seed in range(24)]
    batch = batch_of(*(Position(params) for params in (*sampling, *[structs.replace(p, min_p=0.0) for p in sampling])))
    sampled, _ = sample_by(TritonLogitsSampler(0), logits, batch)
    assert set(sampled[:24, 0].tolist()) == {4, 250}
    assert len(set(sampled[24:, 0].tolist())) > 12
    assert sampled[:, 0].tolist() == choose_tokens(logits.clone(), batch, 0)[0].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_unsampled_tokens_are_chosen_in_other_rows_only(device: str, temperature: float) -> None:
    """They are the likeliest, and min-p counts from the likeliest one that may be chosen. Confidences stay."""
    logits = torch.full((64, 300), -3.0, device=device)
    logits[:, 0], logits[:, 4], logits[:, 250], logits[:, 77] = 20.0, 9.0, 9.0, 4.0
    positions = [
        Position(SamplingParams(temperature, seed=seed, min_p=0.5, top_k=seed % 3), unsampled=(4, 250) * (seed % 2))
        for seed in range(64)
    ]
    batch = batch_of(*positions)
    sampled, _ = sample_by(TritonLogitsSampler(0), logits, batch)
    wanted, _ = sample_by(TorchLogitsSampler(0), logits.clone(), batch)
    assert set(sampled[1::2, 0].tolist()) == {77}
    assert set(sampled[::2, 0].tolist()) == ({4} if temperature == 0 else {4, 250})
    torch.testing.assert_close(sampled, wanted, rtol=2e-5, atol=2e-5)
    alone, _ = sample_by(TritonLogitsSampler(0), logits[1:2], batch.select(np.array([1])))
    assert torch.equal(alone[0], sampled[1])


def test_a_token_that_is_sure_has_confidence_one_and_entropy_zero(device: str) -> None:
    logits = torch.full((1, 300), -80.0, device=device)
    logits[0, 4] = 80.0
    for temperature in (0.0, 1e-9, 1.0):
        reads = batch_of(Position(SamplingParams(temperature, seed=1)))
        sampled, _ = sample_by(TritonLogitsSampler(0), logits.clone(), reads)
        assert sampled[0].tolist() == pytest.approx([4, 1, 0, 0], abs=1e-12)
        assert choose_tokens(logits.clone(), reads, 0)[1].item() == 1
        assert entropies(logits.clone(), reads).item() == pytest.approx(0, abs=1e-12)
