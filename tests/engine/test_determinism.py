"""`deterministic`: a request's numbers are the same to the last bit, alone and in any batch, in every mode."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from service.decode.modes import Speculative, Static
from service.decode.policy import Prediction
from service.demo import CHECKPOINT
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.model import Checkpoint, LoadOptions, load_checkpoint
from tests.engine.helpers import CHEAP_ROWS, SHAPES, checked, random_requests, random_sampling, shaped
from tests.engine.test_exactness import FAST, assert_pairs, pairs
from tests.runners import RunnerWrapper, engine_over
from tests.thinned import fast_only, fast_rows
from tests.tiny import GOLDEN_NAMES, golden

DTYPES = (torch.float32, torch.bfloat16)


class Recording(RunnerWrapper):
    """Does what ModelRunner does and keeps what was read of every state, by the request's seed and the state."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self.readings = dict[object, Prediction]()

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        return self.keep("backbone", rows, super().evaluate(rows))

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        return self.keep("mrp", rows, super().refine(rows))

    def keep(self, network: str, rows: Sequence[Row], readings: list[Prediction]) -> list[Prediction]:
        for row, reading in zip(rows, readings, strict=True):
            if row.sampling is not None:
                self.readings[network, row.sampling.seed, row.index, row.state, row.rescore] = reading
        return readings


def read(checkpoint: Checkpoint, batches: Sequence[Sequence[GenerationRequest]], **limits: int) -> dict:
    usual = {"deterministic": True, "kv_cache_tokens": 2048}
    engine, recording = engine_over(Recording, checkpoint, **(usual | limits))
    for batch in batches:
        engine.generate(batch)
    return recording.readings


def num_differing(left: dict, right: dict) -> int:
    assert left.keys() == right.keys()
    return sum(
        not (torch.equal(prediction.handle.hidden, right[key].handle.hidden) and prediction.picks == right[key].picks)
        or prediction.rescored != right[key].rescored
        for key, prediction in left.items()
    )


@pytest.mark.parametrize(
    ("shape", "dtype"),
    fast_rows(
        lambda shape, dtype: shape in {0, 5} or (shape in {1, 3}) == (dtype == torch.bfloat16),
        [(shape, dtype) for shape in range(len(SHAPES)) for dtype in DTYPES],
    ),
)
def test_a_batch_changes_no_bit_of_hidden_states_and_picks(shape: int, dtype: torch.dtype) -> None:
    assert_equal_to_the_bit(dtype, shape, seed=shape, more_rows=5 * shape, max_running=4, count=4, longest=16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(SHAPES) - 1), st.integers(0, 2**32), st.integers(0, 30), st.integers(1, 8))
def test_hidden_states_and_picks_are_equal_to_the_bit_alone_and_in_any_batch(
    dtype: torch.dtype, shape: int, seed: int, more_rows: int, max_running: int
) -> None:
    assert_equal_to_the_bit(dtype, shape, seed, more_rows, max_running, count=2 + seed % 7, longest=30)


def assert_equal_to_the_bit(
    dtype: torch.dtype, shape: int, seed: int, more_rows: int, max_running: int, count: int, longest: int
) -> None:
    checkpoint, rng = shaped(shape, dtype), random.Random(seed)
    requests = random_requests(rng, checkpoint, count, longest)
    max_rows = checkpoint.config.block_size + 2 + more_rows
    alone = read(checkpoint, [[request] for request in requests])
    rng.shuffle(requests)
    assert num_differing(alone, read(checkpoint, [requests], max_rows=max_rows, max_running=max_running)) == 0


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.slow  # two threads on a machine that is busy with other things wait for each other
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_holds_with_two_threads_and_on_trained_weights(dtype: torch.dtype) -> None:
    checkpoint = load_checkpoint(CHECKPOINT, LoadOptions(dtype=dtype))
    requests = random_requests(random.Random(2), checkpoint, 10, longest=40)
    assert num_differing(read(checkpoint, [[request] for request in requests]), read(checkpoint, [requests])) == 0


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_it_computes_what_the_reference_does(shape: int) -> None:
    """Every forward against a recomputation: no row reads another's pages, nor pages not written yet."""
    checkpoint = shaped(shape, torch.float64)
    engine, runner = checked(checkpoint, deterministic=True, max_rows=20, kv_cache_tokens=1024)
    engine.generate(random_requests(random.Random(shape), checkpoint, 4, longest=16))
    assert runner.compared > 25


@pytest.mark.parametrize("name", fast_only(FAST.__eq__, GOLDEN_NAMES))
def test_in_bfloat16_speculative_is_static(name: str) -> None:
    checkpoint = golden(name, torch.bfloat16)
    engine = Engine(checkpoint, EngineConfig(deterministic=True), deps=EngineDeps(costs=CHEAP_ROWS))
    for temperature in (0.0, 1.2):
        requests = pairs(21, checkpoint, temperature, 6)
        assert_pairs(requests, engine.generate(requests), 6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", fast_only(FAST.__eq__, GOLDEN_NAMES))
def test_the_prefix_cache_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    checkpoint, rng = golden(name, dtype), random.Random(5)
    requests = random_requests(rng, checkpoint, 4, longest=20)
    for request in tuple(requests):  # the same prompt, and a seed of its own: readings are told apart by it
        sampling = structs.replace(request.sampling, seed=request.sampling.seed ^ 1)
        requests.append(replace(request, request_id=f"{request.request_id} beside", mode=Static(), sampling=sampling))
    without = read(checkpoint, [requests], prefix_cache=False)
    assert num_differing(without, read(checkpoint, [requests, requests])) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_continued_request_is_the_same_to_the_bit(dtype: torch.dtype) -> None:
    """A finished block is stored by the same row whether it was decoded or came with the prompt."""
    checkpoint = golden(GOLDEN_NAMES[1], dtype)
    sampling = random_sampling(random.Random(4), [0.9])
    for mode in (Static(), Speculative(3)):
        whole = GenerationRequest("x", tuple(range(11)), mode, sampling, max_new_tokens=16)
        (done,) = Engine(checkpoint, EngineConfig(deterministic=True)).generate([whole])
        sent = done.blocks[0].token_ids + done.blocks[1].token_ids
        rest = replace(whole, prompt_token_ids=whole.prompt_token_ids + sent, max_new_tokens=16 - len(sent))
        long, short = read(checkpoint, [[whole]]), read(checkpoint, [[rest]])
        assert num_differing({key: long[key] for key in short}, short) == 0
