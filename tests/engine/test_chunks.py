"""Prompts in chunks: the rows of each step, and the waits of requests. test_exactness.py compares their output."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.decode.modes import Static
from service.decode.policy import Prediction
from service.engine import Engine, GenerationRequest
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.engine.scheduler import shares
from tests.engine.helpers import request_of, shaped
from tests.runners import RunnerWrapper, engine_over


class Forwards(RunnerWrapper):
    def __init__(self, runner: ModelRunner) -> None:
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


@pytest.mark.undisturbed
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
