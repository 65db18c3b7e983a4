"""One request: its end, its costs, its statistics."""

import random
from collections.abc import Sequence

import pytest

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.engine import (
    BlockEvent,
    Engine,
    EngineConfig,
    EngineDeps,
    ForwardCounts,
    GenerationRequest,
    SamplingParams,
    Stats,
)
from service.errors import InvalidRequest, ModeNotAvailable, PromptTooLong
from service.model import Checkpoint
from tests.clock import Clock
from tests.engine.helpers import ALL_MODES, Recorder, random_requests, request_of
from tests.tiny import tiny_checkpoint

PROMPT = (5, 6, 7, 8, 9, 10)  # a block and a half


@pytest.fixture
def engine(checkpoint: Checkpoint) -> Engine:
    return Engine(checkpoint, EngineConfig(kv_cache_tokens=1024))


def decode(engine: Engine, request: GenerationRequest) -> tuple[int, ...]:
    return engine.generate([request])[0].token_ids


def run_until_first_block(engine: Engine) -> list[BlockEvent]:
    while not (events := engine.step()):
        assert engine.has_work
    return events


class TestWhereItEnds:
    @pytest.mark.parametrize("mode", ALL_MODES, ids=lambda mode: mode.name)
    @pytest.mark.parametrize("prompt", [1, 3, 4, 5, 8, 11])
    def test_the_limit_is_met_wherever_it_falls_in_a_block(
        self, engine: Engine, prompt: int, mode: DecodingMode
    ) -> None:
        """A shorter limit cuts the same tokens, it does not change them."""
        longest = decode(engine, self.limited(prompt, mode, 12))
        together = engine.generate([self.limited(prompt, mode, limit) for limit in range(1, 12)])
        for limit, done in enumerate(together, 1):
            assert done.token_ids == longest[:limit]
            assert done.finish_reason == "length"

    @staticmethod
    def limited(prompt: int, mode: DecodingMode, limit: int) -> GenerationRequest:
        return request_of(f"x{limit}", (PROMPT * 2)[:prompt], mode, tokens=limit)

    @pytest.mark.parametrize("mode", ALL_MODES, ids=lambda mode: mode.name)
    def test_a_stop_token_ends_it_and_is_not_returned(self, engine: Engine, mode: DecodingMode) -> None:
        whole = decode(engine, request_of("x", PROMPT, mode, tokens=16))
        stops = sorted(set(whole))
        requests = [request_of(str(stop), PROMPT, mode, tokens=16, stop_token_ids=frozenset([stop])) for stop in stops]
        for stop, done in zip(stops, engine.generate(requests), strict=True):
            assert done.token_ids == whole[: whole.index(stop)]
            assert done.finish_reason == "stop"

    def test_stopping_early_saves_forwards(self, engine: Engine) -> None:
        """The request ends when everything before the stop token is fixed, not when the block is."""
        savings = 0
        for seed in range(20):
            sampling = SamplingParams(temperature=1.0, seed=seed)
            (whole,) = engine.generate([request_of("x", PROMPT[:4], tokens=4, sampling=sampling)])
            stop = whole.token_ids[0]
            request = request_of("x", PROMPT[:4], tokens=4, sampling=sampling, stop_token_ids=frozenset([stop]))
            (done,) = engine.generate([request])
            assert done.token_ids == ()
            order = [pick.position for step in whole.blocks[0].steps for pick in step.revealed]
            assert done.stats.forwards.denoise == order.index(0) + 1
            savings += whole.stats.forwards.denoise - done.stats.forwards.denoise
        assert savings > 0

    def test_up_to_the_models_length(self) -> None:
        """Also when the length is not a multiple of the block."""
        engine = Engine(tiny_checkpoint(1, max_position_embeddings=30))
        assert engine.max_model_len == 28
        assert len(decode(engine, request_of("x", [1] * 5, tokens=23))) == 23


class TestEvents:
    def test_one_for_each_block_and_together_the_completion(self, checkpoint: Checkpoint) -> None:
        rng, recorder = random.Random(2), Recorder()
        requests = random_requests(rng, checkpoint, 10)
        for request, done in zip(requests, Engine(checkpoint, observer=recorder).generate(requests), strict=True):
            assert tuple(token for block in done.blocks for token in block.token_ids) == done.token_ids
            assert [block.index for block in done.blocks] == list(range(len(done.blocks)))
            assert [block.finish_reason for block in done.blocks[:-1]] == [None] * (len(done.blocks) - 1)
            assert done.blocks[-1].finish_reason == done.finish_reason
            head = len(request.prompt_token_ids) % 4
            for number, block in enumerate(done.blocks[:-1]):
                assert len(block.token_ids) == (4 - head if number == 0 else 4)
            assert [event for event in recorder.events if event.request_id == request.request_id] == list(done.blocks)

    def test_a_block_is_sent_when_it_is_final_not_when_it_is_stored(self, engine: Engine) -> None:
        engine.submit(request_of("x", PROMPT[:4], Dynamic(1e-9), tokens=8))
        (event,) = engine.step()
        assert len(event.token_ids) == 4


class TestForwards:
    @pytest.fixture
    def engine(self, checkpoint: Checkpoint) -> Engine:
        return Engine(checkpoint, EngineConfig(kv_cache_tokens=1024, prefix_cache=False))

    def forwards(self, engine: Engine, mode: DecodingMode, prompt: Sequence[int] = PROMPT[:4]) -> ForwardCounts:
        (done,) = engine.generate([request_of("x", prompt, mode, tokens=8)])
        return done.stats.forwards

    def test_static(self, engine: Engine) -> None:
        """Eight tokens, eight forwards: the prompt and the first block share forwards with evaluations."""
        assert self.forwards(engine, Static()) == ForwardCounts(prefill=1, denoise=8)
        assert self.forwards(engine, Static(4)) == ForwardCounts(prefill=1, denoise=2)

    def test_a_prompt_shorter_than_a_block_needs_no_prefill(self, engine: Engine) -> None:
        (done,) = engine.generate([request_of("x", (1, 2, 3), Static(), tokens=5)])
        assert done.stats.forwards == ForwardCounts(denoise=5)

    def test_direct(self, engine: Engine) -> None:
        assert self.forwards(engine, Direct(1)) == ForwardCounts(prefill=1, denoise=4, mrp=4)
        assert self.forwards(engine, Direct(3)) == ForwardCounts(prefill=1, denoise=2, mrp=6)

    @pytest.mark.parametrize("mode", [Direct(1), Speculative(1), Remask(0.5)])
    def test_mrp_does_nothing_for_a_request_that_is_over(self, checkpoint: Checkpoint, mode: DecodingMode) -> None:
        recorder = Recorder()
        engine = Engine(checkpoint, EngineConfig(prefix_cache=False), recorder)
        (done,) = engine.generate([request_of("x", [1] * 7, mode, tokens=1)])
        assert done.stats.forwards == ForwardCounts(prefill=1, denoise=1)
        assert recorder.forwards("mrp") == 0

    def test_a_commit_that_cannot_ride_is_counted(self, checkpoint: Checkpoint) -> None:
        """With two requests in a budget of six rows, a stored block may have to go alone."""
        engine = Engine(checkpoint, EngineConfig(max_rows=6))
        done = engine.generate([request_of(str(n), PROMPT, Speculative(4), tokens=40) for n in range(3)])
        alone = Engine(checkpoint).generate([request_of("x", PROMPT, Speculative(4), tokens=40)])
        assert alone[0].stats.forwards.commit == 0
        assert sum(completion.stats.forwards.commit for completion in done) > 0
        assert {completion.token_ids for completion in done} == {alone[0].token_ids}

    def test_drafts_and_remasks_are_folded_from_the_steps(self, engine: Engine) -> None:
        remasked = 0
        for mode in (Speculative(3), Remask(0.05), Remask(0.3)):
            (done,) = engine.generate([request_of("x", PROMPT, mode, tokens=30)])
            steps = [step for block in done.blocks for step in block.steps]
            assert done.stats.drafts_proposed == sum(len(step.drafted) for step in steps)
            assert done.stats.drafts_accepted == sum(step.accepted for step in steps)
            assert done.stats.remasked == sum(len(step.remasked) for step in steps)
            assert (done.stats.drafts_proposed > 0) == isinstance(mode, Speculative)
            remasked += done.stats.remasked
        assert remasked > 0

    def test_tokens_per_forward(self) -> None:
        stats = Stats(ForwardCounts(prefill=1, denoise=2, verify=2, commit=1, mrp=9), decoded_tokens=12)
        assert stats.tokens_per_forward == 3.0
        assert stats.tokens_per_forward_total == 2.0
        assert Stats().tokens_per_forward == 0.0

    def test_a_stop_token_counts_as_decoded(self, engine: Engine) -> None:
        whole = decode(engine, request_of("x", PROMPT, tokens=8))
        (done,) = engine.generate([request_of("x", PROMPT, tokens=8, stop_token_ids=frozenset([whole[0]]))])
        assert (len(done.token_ids), done.stats.decoded_tokens) == (0, 1)

    def test_the_observers_counts_are_the_sum_of_the_requests(self, checkpoint: Checkpoint) -> None:
        recorder = Recorder()
        requests = random_requests(random.Random(9), checkpoint, 8)
        done = Engine(checkpoint, EngineConfig(max_rows=16), recorder).generate(requests)
        for kind in ("prefill", "denoise", "verify", "commit", "mrp"):
            assert recorder.forwards(kind) == sum(getattr(completion.stats.forwards, kind) for completion in done)


class TestTime:
    def timed(self, checkpoint: Checkpoint, **limits: int) -> tuple[Engine, Clock, Recorder]:
        clock, recorder = Clock(), Recorder()
        return Engine(checkpoint, EngineConfig(**limits), recorder, EngineDeps(clock=clock)), clock, recorder

    def test_a_running_request_ends_with_what_is_final(self, checkpoint: Checkpoint) -> None:
        engine, clock, recorder = self.timed(checkpoint)
        whole = decode(engine, request_of("x", PROMPT, tokens=40))
        recorder.clear()
        engine.submit(request_of("x", PROMPT, tokens=40, timeout_s=5.0))
        events = run_until_first_block(engine)
        clock.now += 4.9
        events += engine.step() + engine.step()
        assert engine.has_work
        clock.now += 0.1
        events += engine.step()
        assert not engine.has_work
        assert engine.state().kv_pages_used == 0
        tokens = tuple(token for event in events for token in event.token_ids)
        assert tokens == whole[: len(tokens)]
        assert len(tokens) >= 2
        assert events[-1].finish_reason == "timeout"
        assert events[-1].stats.total_s == pytest.approx(5.0)
        assert recorder.events == events

    def test_a_waiting_request_ends_with_nothing(self, checkpoint: Checkpoint) -> None:
        engine, clock, recorder = self.timed(checkpoint, max_running=1)
        engine.submit(request_of("running", PROMPT, tokens=40))
        engine.submit(request_of("waiting", PROMPT, tokens=40, timeout_s=2.0))
        engine.step()
        clock.now += 2
        (event,) = [event for event in engine.step() if event.request_id == "waiting"]
        assert (event.token_ids, event.finish_reason, event.index) == ((), "timeout", 0)
        assert event.stats == Stats(queue_s=2.0, total_s=2.0)
        assert engine.state().num_waiting == 0
        assert event in recorder.events

    def test_times_in_the_stats(self, checkpoint: Checkpoint) -> None:
        engine, clock, _ = self.timed(checkpoint, max_running=1)
        engine.submit(request_of("first", PROMPT[:4], Static(4), tokens=8))
        engine.submit(request_of("second", PROMPT[:4], Static(4), tokens=8))
        events = []
        while engine.has_work:
            clock.now += 1
            events += [event for event in engine.step() if event.request_id == "second"]
        first, last = events
        assert first.stats.queue_s == last.stats.queue_s == 3.0
        assert (first.stats.first_block_s, last.stats.first_block_s) == (3.0, 3.0)
        assert (first.stats.total_s, last.stats.total_s) == (3.0, 4.0)


class TestAbort:
    def test_a_running_request_frees_its_pages_at_once(self, checkpoint: Checkpoint) -> None:
        recorder = Recorder()
        engine = Engine(checkpoint, observer=recorder)
        engine.submit(request_of("x", PROMPT, tokens=40))
        engine.step()
        assert engine.state().kv_pages_used > 0
        engine.abort("x")
        assert engine.state().kv_pages_used == 0
        assert not engine.has_work
        assert [(event.request_id, event.finish_reason) for event in recorder.events] == [("x", "abort")]

    def test_a_waiting_request_leaves_the_queue(self, checkpoint: Checkpoint) -> None:
        recorder = Recorder()
        engine = Engine(checkpoint, observer=recorder)
        engine.submit(request_of("x", PROMPT))
        engine.abort("x")
        assert not engine.has_work
        assert [event.finish_reason for event in recorder.events] == ["abort"]


class TestValidation:
    @pytest.mark.parametrize(
        ("invalid", "param", "message"),
        [
            (request_of("x", []), "prompt", "the prompt is empty"),
            (request_of("x", [1, 64]), "prompt_token_ids", "has 64, allowed are 0 to 63"),
            (request_of("x", [-1]), "prompt_token_ids", "has -1, allowed are 0 to 63"),
            (request_of("x", [1, 60]), "prompt_token_ids", "has the mask token 60"),
            (request_of("x", [1], tokens=0), "max_new_tokens", "max_new_tokens is 0, at least 1 is needed"),
            (request_of("x", [1], Static(5)), "tokens_per_step", r"tokens_per_step is 5, allowed are 1 to 4"),
            (request_of("x", [1], Remask(0.0)), "threshold", r"threshold is 0\.0"),
        ],
    )
    def test_an_invalid_request_is_refused_with_its_parameter(
        self, engine: Engine, invalid: GenerationRequest, param: str, message: str
    ) -> None:
        for call in (engine.validate, engine.submit):
            with pytest.raises(InvalidRequest, match=message) as caught:
                call(invalid)
            assert caught.value.param == param
        assert not engine.has_work

    def test_too_long_for_the_model_the_cache_or_the_operator(self, checkpoint: Checkpoint) -> None:
        for config, longest in [
            (EngineConfig(), 256),
            (EngineConfig(kv_cache_tokens=43), 40),
            (EngineConfig(max_model_len=33), 33),
        ]:
            engine = Engine(checkpoint, config)
            assert engine.max_model_len == longest
            engine.validate(request_of("x", [1] * 10, tokens=longest - 10))
            with pytest.raises(PromptTooLong, match=f"length is {longest} tokens.*are {longest + 1} tokens"):
                engine.validate(request_of("x", [1] * 10, tokens=longest - 9))

    def test_without_mrp_what_needs_none_is_served(self) -> None:
        engine = Engine(tiny_checkpoint(2, num_nextn_predict_layers=0))
        for mode in (Static(), Dynamic(0.3), Speculative()):
            assert len(decode(engine, request_of("x", PROMPT, mode))) == 8
        for mode in (Direct(), Speculative(2), Remask()):
            with pytest.raises(ModeNotAvailable, match=f"mode '{mode.name}' needs MRP and this checkpoint has none"):
                engine.generate([request_of("x", PROMPT, mode)])

    def test_two_requests_with_one_id(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequest, match="same request_id"):
            engine.generate([request_of("x", PROMPT), request_of("x", PROMPT)])


def test_generate_wants_the_engine_for_itself(engine: Engine) -> None:
    engine.submit(request_of("submitted", PROMPT, Static(), 8))
    with pytest.raises(InvalidRequest, match="still decodes submitted requests"):
        engine.generate([request_of("generated", PROMPT, Static(), 8)])
    while engine.has_work:
        engine.step()
    assert engine.generate([request_of("generated", PROMPT, Static(), 8)])[0].token_ids
