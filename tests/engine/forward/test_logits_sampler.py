"""From logits to tokens: the noise, its distribution, top-k and top-p, confidences."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine import SamplingParams
from service.engine.forward.logits_sampler import choose_tokens, gumbel, noise_keys
from service.errors import InvalidRequest
from tests.engine.forward.sampled import Position, batch_of
from tests.reference import plain_filter

MASK = 0


def draws(logits: torch.Tensor, count: int, **knobs: float) -> list[int]:
    sampling = SamplingParams(**knobs)  # type: ignore[arg-type]
    tokens, _, _ = choose_tokens(
        logits.repeat(count, 1), batch_of(*(Position(sampling, p) for p in range(count))), MASK
    )
    return tokens.tolist()


class TestNoise:
    def test_it_is_the_same_on_every_machine(self) -> None:
        """The same definition in plain Python integers."""

        def mix(x: int) -> int:
            x ^= x >> 16
            x = x * 0x7FEB352D & 0xFFFFFFFF
            x ^= x >> 15
            x = x * 0x846CA68B & 0xFFFFFFFF
            return x ^ x >> 16

        def mix64(x: int) -> int:
            x &= 2**64 - 1
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
            x = (x ^ x >> 27) * 0x94D049BB133111EB & 2**64 - 1
            return x ^ x >> 31

        def noise(seed: int, position: int, revealed: int, token: int) -> float:
            key = 0
            for part in (seed, position, revealed):
                key = mix64((key ^ part) + 0x9E3779B97F4A7C15)
            first, second = key & 0xFFFFFFFF, key >> 32
            word = mix(mix((token * 0x9E3779B1 + first) & 0xFFFFFFFF) ^ second)
            return -math.log(-math.log1p(-min((word + 0.5) / 2**32, 1 - 2**-24)))

        for seed, position, revealed in [(0, 0, 0), (1, 7, 3), (2**63 - 1, 40000, 63)]:
            wanted = [noise(seed, position, revealed, token) for token in range(200)]
            sampling = SamplingParams(temperature=1.0, seed=seed)
            reads = batch_of(Position(sampling, position, revealed))
            actual = gumbel(torch.from_numpy(noise_keys(reads)), torch.arange(200))[0]
            torch.testing.assert_close(actual, torch.tensor(wanted), rtol=1e-4, atol=1e-5)
            tokens, _, _ = choose_tokens(torch.zeros(1, 200), reads, MASK)
            assert tokens.tolist() == [max(range(1, 200), key=wanted.__getitem__)]


def chi_square(counts: Counter, probabilities: dict) -> float:
    total = sum(counts.values())
    assert set(counts) <= set(probabilities)
    return sum((counts[key] - total * p) ** 2 / (total * p) for key, p in probabilities.items())


class TestDistribution:
    LOGITS = torch.tensor([1.0, 2.0, 0.5, -1.0, 0.0, 1.5, -0.5, 1.0, 0.2, -2.0, 0.8])

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("seed", [0, 12345])
    def test_tokens_are_drawn_from_the_softmax(self, temperature: float, seed: int) -> None:
        counts = Counter(draws(self.LOGITS, 20_000, temperature=temperature, seed=seed))
        expected = self.LOGITS[1:].div(temperature).softmax(-1).tolist()
        assert chi_square(counts, dict(enumerate(expected, start=1))) < 27.9  # 99.9 %, 9 degrees


@settings(max_examples=100)
@given(
    st.lists(st.integers(-20, 20).map(lambda x: x / 4), min_size=2, max_size=20),
    st.integers(0, 25),
    st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.3, 1.0, 2.5]),
)
def test_top_k_and_top_p_leave_what_a_plain_implementation_leaves(
    values: list[float], top_k: int, top_p: float, temperature: float
) -> None:
    logits = torch.tensor([9.0, *values])
    scaled = logits / temperature
    scaled[MASK] = -math.inf
    probabilities = scaled.double().softmax(-1).tolist()
    best = sorted(probabilities, reverse=True)[: top_k or None]
    if any(abs(sum(other for other in best if other > p) / sum(best) - top_p) < 1e-5 for p in best):
        return  # rounding decides there
    expected = plain_filter(probabilities, top_k, top_p)
    allowed = {token for token, ok in enumerate(expected) if ok and token != MASK}
    drawn = set(draws(logits, 400, temperature=temperature, top_k=top_k, top_p=top_p))
    assert drawn <= allowed
    likely = {token for token in allowed if probabilities[token] / sum(probabilities[t] for t in allowed) > 0.05}
    assert likely <= drawn


def test_greedy_takes_the_highest_and_the_lowest_token_of_a_tie() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0, 3.0, 2.0], [0.0, 5.0, 5.0, 5.0, 5.0]])
    tokens, _, _ = choose_tokens(logits, batch_of(Position(), Position()), MASK)
    assert tokens.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, allowed are 0 to 100"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0, allowed is 0 < top_p <= 1"),
        ({"top_k": -1}, r"top_k is -1, allowed is 0 \(off\) or more"),
        ({"seed": -1}, "seed is -1, allowed are 0 to 9223372036854775807"),
    ],
)
def test_knobs_out_of_range_are_refused_by_name(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        SamplingParams(**knobs)  # type: ignore[arg-type]
    assert caught.value.param == next(iter(knobs))


@pytest.mark.parametrize("top_p", [5e-324, 1e-300, 1e-46, 1e-40, 1e-7])
@pytest.mark.parametrize("temperature", [5e-324, 1e-6, 0.7, 100.0])
def test_the_least_top_p_leaves_the_likeliest_token_and_never_the_mask(top_p: float, temperature: float) -> None:
    torch.manual_seed(0)
    logits, mask = torch.randn(20, 50), 0
    logits[:, mask] = 9.0
    sampling = SamplingParams(temperature, top_p, seed=3)
    tokens, _, _ = choose_tokens(
        logits.clone(), batch_of(*(Position(sampling, position) for position in range(20))), mask
    )
    assert tokens.tolist() == (logits[:, 1:].argmax(-1) + 1).tolist()
