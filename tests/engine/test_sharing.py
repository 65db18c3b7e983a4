"""The prefix cache in the engine: less prefill, the same tokens, nothing shared that is not written.

test_exactness.py decodes any course of requests with it.
"""

import pytest

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Remask, Speculative, Static
from service.engine import Completion, Engine, EngineConfig, SamplingParams
from service.engine.request import Sharing
from service.model import Checkpoint
from tests.engine.helpers import ALL_MODES, Recorder, audit, checked, nodes_of, request_of
from tests.runners import RunnerWrapper, engine_over

PROMPT = tuple(range(5, 15))  # two blocks and a half


@pytest.fixture
def engine(checkpoint: Checkpoint) -> Engine:
    return Engine(checkpoint, EngineConfig(kv_cache_tokens=1024))


def ask(engine: Engine, prompt: tuple[int, ...], mode: DecodingMode | None = None, **more: object) -> Completion:
    (done,) = engine.generate([request_of("x", prompt, mode, **more)])
    return done


class TestWhatIsShared:
    @pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:8]], ids=["part of a block", "whole blocks"])
    @pytest.mark.parametrize("mode", ALL_MODES, ids=lambda mode: mode.name)
    def test_a_prompt_that_was_there_needs_no_prefill(
        self, engine: Engine, mode: DecodingMode, prompt: tuple[int, ...]
    ) -> None:
        first, second = ask(engine, prompt, mode), ask(engine, prompt, mode)
        assert (first.stats.cached_tokens, first.stats.forwards.prefill) == (0, 1)
        assert (second.stats.cached_tokens, second.stats.forwards.prefill) == (8, 0)
        assert second.token_ids == first.token_ids
        assert engine.state().kv_pages_used == 0

    @pytest.mark.parametrize("mode", ALL_MODES, ids=lambda mode: mode.name)
    def test_the_next_turn_finds_the_blocks_of_the_answer(self, checkpoint: Checkpoint, mode: DecodingMode) -> None:
        engine = Engine(checkpoint)
        answer = ask(engine, PROMPT, mode, tokens=14)
        turn = PROMPT + answer.token_ids + (1, 2, 3)
        done = ask(engine, turn, mode)
        assert done.stats.cached_tokens in {16, 20}  # 24 are final; what only the last block would read is not written
        assert done.token_ids == ask(Engine(checkpoint), turn, mode).token_ids

    def test_another_salt_shares_nothing(self, engine: Engine) -> None:
        ask(engine, PROMPT, sharing=Sharing(cache_salt="a"))
        assert [
            ask(engine, PROMPT, sharing=Sharing(cache_salt=salt)).stats.cached_tokens for salt in ("b", "", "a", "b")
        ] == [0, 0, 8, 8]

    def test_switched_off(self, checkpoint: Checkpoint) -> None:
        recorder = Recorder()
        engine = Engine(checkpoint, EngineConfig(prefix_cache=False), recorder)
        first, second = ask(engine, PROMPT), ask(engine, PROMPT)
        assert second.stats.forwards == first.stats.forwards
        assert second.stats.cached_tokens == sum(report.cache.looked_up for report in recorder.reports) == 0

    def test_the_observer_hears_what_was_looked_up_and_found(self, checkpoint: Checkpoint) -> None:
        recorder = Recorder()
        engine = Engine(checkpoint, observer=recorder)
        done = [ask(engine, PROMPT[:length]) for length in (3, 10, 10, 8)]
        assert sum(report.cache.looked_up for report in recorder.reports) == 3 + 10 + 10 + 8
        assert (
            sum(report.cache.cached for report in recorder.reports)
            == sum(completion.stats.cached_tokens for completion in done)
            == 16
        )


class TestMrp:
    @pytest.mark.parametrize("mode", [Direct(1), Speculative(2), Remask(0.5)])
    def test_pages_of_a_mode_without_it_are_computed_again_for_it_and_serve_both(
        self, checkpoint: Checkpoint, mode: DecodingMode
    ) -> None:
        engine, runner = checked(checkpoint)
        ask(engine, PROMPT, Static())
        alone, again = ask(engine, PROMPT, mode), ask(engine, PROMPT, mode)
        assert (alone.stats.cached_tokens, again.stats.cached_tokens) == (0, 8)
        assert again.token_ids == alone.token_ids
        assert ask(engine, PROMPT, Static()).stats.cached_tokens == 8
        assert runner.compared

    def test_a_request_that_ends_before_mrp_runs_shares_nothing_without_its_part(self, engine: Engine) -> None:
        assert ask(engine, PROMPT[:7], Speculative(2), tokens=1).stats.forwards.mrp == 0
        assert ask(engine, PROMPT[:7], Speculative(2)).stats.cached_tokens == 0


@pytest.mark.undisturbed
class TestWhatIsBeingWritten:
    """Requests with one prompt of 20 blocks that come together: one stores it, the others wait and read."""

    LONG = tuple(range(50)) + tuple(range(33))

    @pytest.mark.parametrize("mode", ALL_MODES, ids=lambda mode: mode.name)
    def test_a_long_prompt_is_stored_by_one_of_them(self, checkpoint: Checkpoint, mode: DecodingMode) -> None:
        engine, runner = checked(checkpoint)
        many = [request_of(name, self.LONG, mode, sampling=SamplingParams(0.9, seed=1)) for name in "abcdef"]
        first, *followers = engine.generate(many)
        assert (first.stats.cached_tokens, first.stats.forwards.prefill) == (0, 1)
        assert {(completion.stats.cached_tokens, completion.stats.forwards.prefill) for completion in followers} == {
            (80, 0)
        }
        assert {completion.token_ids for completion in followers} == {first.token_ids}
        assert runner.compared
        assert engine.state().kv_pages_used == 0

    def test_if_that_one_is_aborted_the_next_one_goes_on(self, checkpoint: Checkpoint) -> None:
        engine = Engine(checkpoint, EngineConfig(max_prefill_tokens=20, kv_cache_tokens=1024))
        engine.submit(request_of("decodes", PROMPT, tokens=60))
        engine.step()
        for name in "abc":
            engine.submit(request_of(name, self.LONG, tokens=4))
        for _ in range(2):
            engine.step()
        engine.abort("a")
        prefills = dict[str, tuple[int, int]]()
        while engine.has_work:
            for event in engine.step():
                prefills[event.request_id] = event.stats.forwards.prefill, event.stats.cached_tokens
        assert prefills["b"][1] == 40
        assert prefills["c"] == (0, 80)

    def test_a_short_prompt_is_not_waited_for(self, engine: Engine) -> None:
        first, second = engine.generate([request_of(name, PROMPT) for name in "ab"])
        assert first.stats.forwards.prefill == second.stats.forwards.prefill == 1

    def test_another_salt_does_not_wait(self, engine: Engine) -> None:
        many = [request_of(salt, self.LONG, sharing=Sharing(cache_salt=salt)) for salt in "ab"]
        assert [completion.stats.forwards.prefill for completion in engine.generate(many)] == [1, 1]


class TestWhatIsNotWritten:
    @pytest.mark.parametrize("broken", ["evaluate", "refine"])
    def test_a_step_that_fails_shares_nothing(self, checkpoint: Checkpoint, broken: str) -> None:
        def fail(self: object, rows: object) -> None:
            raise RuntimeError("broken")

        engine, _ = engine_over(type("Failing", (RunnerWrapper,), {broken: fail}), checkpoint)
        engine.submit(request_of("x", PROMPT, Direct(1)))
        with pytest.raises(RuntimeError, match="broken"):
            engine.step()
        engine.abort("x")
        assert list(nodes_of(engine._pages)) == []
        audit(engine._pages, [])

    def test_an_aborted_request_leaves_what_it_had_written(self, checkpoint: Checkpoint) -> None:
        engine = Engine(checkpoint, EngineConfig(max_rows=6))
        engine.submit(request_of("x", tuple(range(40)), tokens=4))
        engine.step()
        engine.abort("x")
        assert engine.state().kv_pages_used == 0
        assert ask(engine, tuple(range(40))).stats.cached_tokens == 24
