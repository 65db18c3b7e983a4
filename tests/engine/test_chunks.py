"""Prompts in chunks: the rows of each step, the waits of requests, and that chunks do not change the output."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.decode.modes import Static
from service.decode.policy import Prediction
from service.engine import Engine, GenerationRequest
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner
from service.engine.scheduler import shares
from tests.engine.helpers import (
    DEAR,
    FAIR,
    FREE,
    SHAPES,
    checked,
    random_requests,
    request_of,
    shaped,
    some_auto,
    verified,
)
from tests.runners import RunnerWrapper, engine_over


class Forwards(RunnerWrapper):
    def __init__(self, runner: CheckpointRunner) -> None:
        super().__init__(runner)
        self.prompts: list[dict[int, int]] = []
        self.states: list[set[int]] = []

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        prompts: dict[int, int] = {}
        for row in rows:
            if row.writes_kv:
                prompts[id(row.pages)] = prompts.get(id(row.pages), 0) + 1
        self.prompts.append(prompts)
        self.states.append({id(row.pages) for row in rows if not row.writes_kv})
        return super().evaluate(rows)


def long(name: str, blocks: int, **more: int) -> GenerationRequest:
    return request_of(name, [1 + n % 50 for n in range(4 * blocks)], Static(4), tokens=4, **more)


def steps_until(engine: Engine, name: str) -> int:
    for number in range(1, 1000):
        if any(event.request_id == name and event.finish_reason for event in engine.step()):
            return number
    raise AssertionError(f"{name} does not end")


class TestChunks:
    def engine(self, **limits: int) -> tuple[Engine, Forwards]:
        return engine_over(Forwards, shaped(2), **{"max_prefill_tokens": 16, "prefix_cache": False, **limits})

    def decoding(self, engine: Engine, count: int) -> None:
        for number in range(count):
            engine.submit(request_of(f"decoding {number}", [5 + number], Static(), tokens=200))
        engine.step()

    def test_a_long_prompt_comes_in_beside_those_that_decode(self) -> None:
        engine, forwards = self.engine()
        self.decoding(engine, 3)
        engine.submit(long("long", 40))
        assert steps_until(engine, "long") == 10
        for prompts, states in zip(forwards.prompts[1:], forwards.states[1:], strict=True):
            stored = max(prompts.values(), default=0)
            assert stored <= 4
            assert len(states) >= 3

    def test_a_prompt_takes_whole_forwards_while_nobody_decodes(self) -> None:
        engine, forwards = self.engine(max_rows=32)
        engine.submit(long("long", 60))
        assert steps_until(engine, "long") == 2
        assert [sum(prompts.values()) for prompts in forwards.prompts] == [32, 28]

    def test_prompts_share_alike_and_what_one_does_not_need_goes_to_the_others(self) -> None:
        engine, forwards = self.engine(max_prefill_tokens=24)
        self.decoding(engine, 1)
        for request in (long("one", 12), long("other", 12), long("short", 1)):
            engine.submit(request)
        engine.step()
        engine.step()
        assert [sorted(prompts.values()) for prompts in forwards.prompts[1:]] == [[1, 2, 3], [3, 3]]

    def test_less_than_a_block_for_each_goes_round(self) -> None:
        engine, forwards = self.engine(max_prefill_tokens=1)
        self.decoding(engine, 1)
        for number in range(3):
            engine.submit(long(f"{number}", 3))
        for _ in range(9):
            engine.step()
        (decoding,) = forwards.states[0]
        served = [name for prompts in forwards.prompts[1:] for name in prompts if name != decoding]
        assert len(served) == 9
        assert all(len(set(served[turn : turn + 3])) == 3 for turn in (0, 3, 6))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=10), st.integers(0, 200))
def test_shares_are_as_equal_as_what_is_wanted_allows(wanted: list[int], total: int) -> None:
    result = shares(wanted, total)
    assert sum(result) == min(total, sum(wanted))
    assert all(share <= most for share, most in zip(result, wanted, strict=True))
    unsatisfied = [share for share, most in zip(result, wanted, strict=True) if share < most]
    assert not unsatisfied or max(result) - min(unsatisfied) <= 1


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(1e-18, 1e3)), min_size=1, max_size=10), st.integers(10, 200))
def test_with_any_weights_each_share_is_at_least_one(parts: list[tuple[int, float]], total: int) -> None:
    wanted, weights = [count for count, _ in parts], [weight for _, weight in parts]
    result = shares(wanted, total, weights)
    assert sum(result) <= total
    assert all(1 <= share <= most for share, most in zip(result, wanted, strict=True))


@pytest.mark.parametrize(
    ("shape", "prefill_tokens", "more_rows", "deterministic"),
    [(0, 3, 9, False), (1, 1, 2, False), (2, 9, 0, False), (2, 13, 6, True), (3, 20, 12, False), (5, 6, 3, False)],
)
def test_arrivals_budgets_and_modes_are_decoded_as_without_cache_batch_or_chunks(
    shape: int, prefill_tokens: int, more_rows: int, deterministic: bool
) -> None:
    assert_as_plain(shape, 10 + shape, prefill_tokens, more_rows, deterministic, longest=16)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, len(SHAPES) - 1), st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 20), st.booleans())
def test_any_arrival_any_budget_any_mode_is_decoded_as_without_cache_batch_or_chunks(
    shape: int, seed: int, prefill_tokens: int, more_rows: int, deterministic: bool
) -> None:
    assert_as_plain(shape, seed, prefill_tokens, more_rows, deterministic, longest=24)


def assert_as_plain(
    shape: int, seed: int, prefill_tokens: int, more_rows: int, deterministic: bool, longest: int
) -> None:
    """Every forward against a recomputation of the whole sequence, every answer against the plain way to decode."""
    rng, checkpoint = random.Random(seed), shaped(shape)
    requests = some_auto(rng, random_requests(rng, checkpoint, rng.randint(2, 4), longest))
    requests += [  # beginnings of others, whose pages may be written by then or not
        replace(request, request_id=f"{request.request_id} again", prompt_token_ids=(*request.prompt_token_ids, 3))
        for request in rng.sample(requests, 2)
    ]
    engine, runner = checked(
        checkpoint,
        rng.choice([FREE, FAIR, DEAR]),
        max_rows=checkpoint.config.block_size + 2 + more_rows,
        max_prefill_tokens=prefill_tokens,
        prefix_cache=rng.random() < 0.7,
        kv_cache_tokens=2048,
        deterministic=deterministic,
    )
    answers = in_turns(rng, engine, requests)
    reference = runner.reference
    for request in requests:
        assert (
            answers[request.request_id] == reference.generate(replace(request, mode=verified(request.mode))).token_ids
        )
    assert runner.compared > 0
    assert engine.state().kv_pages_used == 0


def in_turns(rng: random.Random, engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, tuple[int, ...]]:
    waiting = list(requests)
    answers: dict[str, tuple[int, ...]] = {request.request_id: () for request in requests}
    while waiting or engine.has_work:
        while waiting and (rng.random() < 0.3 or not engine.has_work):
            engine.submit(waiting.pop())
        for event in engine.step():
            answers[event.request_id] += event.token_ids
    return answers
