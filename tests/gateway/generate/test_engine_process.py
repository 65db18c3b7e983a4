"""A replica whose engine has a process of its own: it answers as one in the same process does, and ends with it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from service.api.generate import parse_generate_request
from service.api.parse import RequestContext
from service.constraints import Constraint
from service.engine import BlockEvent, GenerationRequest
from service.engine.request import LogprobsRequest
from service.engine_process import client as client_module
from service.engine_process.client import EngineProcessClient
from service.engine_process.messages import AT_REPLICA, EngineAlive, StepOutputs
from service.errors import CheckpointError, EngineFailed, InvalidRequest, ReplicaLost, ReplicaStopping
from service.ipc.connections import HEARTBEAT_TIMEOUT_S, POLL_S
from service.messages.replica_status import CheckWeights, PauseState, SetPause, UpdateWeights
from service.messages.wire import Chunk, Weights
from service.replica.metrics import ReplicaMetrics
from service.replica.replica import Replica
from service.replica.start import start_replica
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from service.telemetry.metrics import SumsData
from tests.clock import Clock
from tests.gateway.doubles import free, pipeline
from tests.gateway.generate.helpers import CASES, GENERATE, PROMPT, ask, body, essence, golden_body, problem, streamed
from tests.gateway.generate.test_ranks import ThenElsewhere
from tests.gateway.helpers import eventually, idle, over, samples_of
from tests.other_weights import other_weights
from tests.parallel.test_failures import alive
from tests.process_deps import path_of

UNMEASURED = path_of("UNMEASURED")

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: endings of the names of metrics that tell times
TIMES = ("_seconds_sum", "_seconds_bucket", "_created")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def remote(settings: Settings) -> AsyncIterator[Replica]:
    generator = await start_replica("r0", settings, UNMEASURED)
    assert isinstance(generator._engine, EngineProcessClient)
    yield generator
    process = generator._engine.pid
    generator.close()
    assert not alive(process)


async def start(settings: Settings, deps: str = UNMEASURED, **limits: float) -> EngineProcessClient:
    return await EngineProcessClient.start(settings, ReplicaMetrics().add_sums, deps, **limits)


def request(name: str = "one", **fields: Any) -> GenerationRequest:
    return GenerationRequest(name, tuple(PROMPT), max_new_tokens=16, **fields)


async def blocks(engine: EngineProcessClient, asked: GenerationRequest) -> list[BlockEvent]:
    async with aclosing(engine.generate(asked)) as items:
        return [item async for item in items if isinstance(item, BlockEvent)]


class TestAnswers:
    async def test_golden_decodes_of_every_mode_at_once(self, remote: Replica) -> None:
        async with over(remote) as http:
            answers = await asyncio.gather(*(ask(http, golden_body(case)) for case in CASES))
        assert [answer["token_ids"] for answer in answers] == [case["token_ids"] for case in CASES]
        assert idle(remote)

    @pytest.mark.parametrize(
        "fields",
        [
            {"mode": "speculative", "mrp_steps": 2, "temperature": 0.9, "return_trace": True},
            {"mode": "remask", "return_trace": True},
            {"mode": "direct", "stop": ["w7"], "max_new_tokens": 40},
        ],
        ids=lambda fields: fields["mode"],
    )
    async def test_it_answers_as_an_engine_in_the_same_process(
        self, remote: Replica, generator: Replica, fields: dict[str, Any]
    ) -> None:
        asked = body(seed=3) | fields
        async with over(remote) as there, over(generator) as here:
            for ways in (ask, streamed):
                assert essence(await ways(there, asked)) == essence(await ways(here, asked))

    async def test_steps_are_streamed(self, remote: Replica, generator: Replica) -> None:
        async with over(remote) as there, over(generator) as here:
            asked = body(mode="remask", stream=True, stream_steps=True)
            [one, other] = [(await http.post(GENERATE, json=asked)).text for http in (there, here)]
        assert one.count("event: step") == other.count("event: step") > 1

    async def test_metrics_count_the_same(self, settings: Settings, make_generator: Callable[..., Replica]) -> None:
        local, remote = make_generator("r0"), await start_replica("r0", settings, UNMEASURED)
        counted = []
        for generator in (local, remote):
            async with over(generator) as http:
                for fields in ({"mode": "speculative", "mrp_steps": 2}, {"mode": "remask"}, {"max_new_tokens": 30}):
                    await ask(http, body(**fields))
            text = "".join(family.head + family.samples for family in generator.snapshot().families)
            counted.append([s for s in samples_of(text) if not s.name.endswith(TIMES)])
        remote.close()
        assert counted[0] == counted[1]
        assert any(sample.value > 1 for sample in counted[0])

    async def test_counts_come_without_a_look_at_them(self, settings: Settings) -> None:
        """Else they would fill the memory of a replica that nobody scrapes."""
        counted: list[SumsData] = []
        key = "generation_tokens_total", (("mode", "static"),)
        engine = await EngineProcessClient.start(settings, counted.append, UNMEASURED)
        await blocks(engine, request())
        await eventually(lambda: sum(amounts.get(key, 0) for amounts, _ in counted) == 16)
        engine.close()

    async def test_an_error_of_counting_is_logged_and_ends_nothing(
        self, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = await EngineProcessClient.start(settings, lambda added: 1 / 0, UNMEASURED)  # type: ignore[arg-type,return-value]
        await blocks(engine, request())
        await eventually(lambda: "counts are lost: ZeroDivisionError in " in caplog.text)
        assert (await blocks(engine, request("again")))[-1].finish_reason
        assert engine._watching is not None
        assert not engine._watching.done()
        engine.close()

    async def test_what_nobody_asks_for_stays_in_the_process(
        self, remote: Replica, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        came: list[StepOutputs] = []
        deliver = remote._engine._deliver  # type: ignore[attr-defined]
        monkeypatch.setattr(remote._engine, "_deliver", lambda message: (came.append(message), deliver(message)))
        async with over(remote) as http:
            await ask(http, body(max_new_tokens=60))
            whole, came[:] = [len(message.items) for message in came if message.items], []
            await streamed(http, body(max_new_tokens=60))
            blocks, came[:] = [item for message in came for item in message.items], []
            await ask(http, body(return_trace=True))
        assert whole == [len(blocks)] != [1]
        assert not any(block.steps for block in blocks)
        assert all(block.steps for message in came for block in message.items)

    async def test_log_probabilities(self, remote: Replica, generator: Replica) -> None:
        asked = request("known", logprobs=LogprobsRequest(3, (7, 8)))
        found = [
            [pick.logprobs for one in await blocks(engine, asked) for step in one.steps for pick in step.revealed]
            for engine in (remote._engine, generator._engine)
        ]
        assert found[0] == found[1]
        assert all(len(known.top) == 3 and len(known.by_id) == 2 for known in found[0])

    async def test_grammars_are_compiled_where_the_engine_is(self) -> None:
        there = await start_replica("r0", Settings(device="cpu"), UNMEASURED)
        async with over(there) as http:
            for fields, wanted in (({"regex": "(ab|cd){2}e"}, r"(ab|cd){2}e"), ({"choice": ["yes", "no"]}, "yes|no")):
                asked = {"prompt": "Tom has 5 apples.", "max_new_tokens": 40, "mode": "static"} | fields
                for ways in (ask, streamed):
                    assert re.fullmatch(wanted, (await ways(http, asked))["text"])
            wrong = await http.post(GENERATE, json={"prompt": "Tom", "regex": "("})
            assert problem(wrong, 422)["param"] == "regex"
        there.close()

    async def test_who_leaves_before_the_grammar_is_compiled_frees_the_id(self) -> None:
        engine = await start(Settings(device="cpu"))
        digits = Constraint.regex("[0-9]{3}")
        leaving = asyncio.create_task(anext(engine.generate(request("one"), digits)))  # type: ignore[arg-type]
        await eventually(lambda: engine._compiling == {"one"})
        assert not engine._requests  # no step is due
        with pytest.raises(InvalidRequest, match="is in use"):
            await blocks(engine, request("one"))
        leaving.cancel()
        await eventually(lambda: not engine._compiling)
        again = request("one", stop_token_ids=frozenset(engine.info.config.eos_token_ids))
        async with aclosing(engine.generate(again, digits)) as items:
            events = [item async for item in items if isinstance(item, BlockEvent)]
        assert events[-1].constraint_met
        assert events[-1].stats.queue_s > 0
        engine.close()

    async def test_the_time_limit_holds_while_the_grammar_is_compiled(self) -> None:
        engine = await start(Settings(device="cpu"))
        async with aclosing(engine.generate(request(timeout_s=0.001), Constraint.regex("[0-9]{3}"))) as items:
            [event] = [item async for item in items if isinstance(item, BlockEvent)]
        assert (event.finish_reason, event.token_ids) == ("timeout", ())
        engine.close()

    async def test_a_request_that_it_can_never_serve(self, remote: Replica) -> None:
        async with over(remote) as http:
            assert problem(await http.post(GENERATE, json=body(max_new_tokens=10**6)), 422)["param"] == "max_new_tokens"

    async def test_a_client_that_leaves_frees_the_pages(self, remote: Replica) -> None:
        engine = remote._engine
        async with aclosing(engine.generate(GenerationRequest("leaves", (5, 6, 7), max_new_tokens=800))) as items:
            async for _ in items:
                break
        await eventually(lambda: idle(remote))
        assert (await blocks(engine, request("leaves")))[-1].finish_reason  # the id is free again

    async def test_an_id_in_use(self, remote: Replica) -> None:
        engine = remote._engine
        async with aclosing(engine.generate(GenerationRequest("twice", (5, 6, 7), max_new_tokens=800))) as items:
            await anext(items)
            with pytest.raises(InvalidRequest, match="is in use"):
                await blocks(engine, request("twice"))
        await eventually(lambda: idle(remote))


class TestWeights:
    async def test_they_are_updated(self, settings: Settings, tmp_path: Path) -> None:
        engine = await start(settings)
        try:
            before = await blocks(engine, request())
            other = other_weights(tmp_path / "other", Path(settings.model))
            with pytest.raises(CheckpointError):
                await engine.control(CheckWeights(Weights(3, str(tmp_path), settings.model)))
            checked = await engine.control(CheckWeights(Weights(3, str(other), settings.model)))
            assert checked.weights is not None
            assert checked.weights.mrp_version == 3
            updated = await engine.control(UpdateWeights(checked.weights))
            assert updated.weights == checked.weights
            after = await blocks(engine, request())
            assert {event.version for event in before} == {0}
            assert {event.version for event in after} == {3}
            assert [event.token_ids for event in after] != [event.token_ids for event in before]
            again = await start(settings.model_copy(update={"model": str(other)}))
            assert [e.token_ids for e in await blocks(again, request())] == [event.token_ids for event in after]
            again.close()
        finally:
            engine.close()


class TestEnds:
    async def test_a_killed_process_loses_nothing_that_can_go_on_elsewhere(
        self, settings: Settings, generator: Replica
    ) -> None:
        lost = await start_replica("lost", settings, path_of("HANGING_LATER"))
        again: list[str] = []
        wanted = body(max_new_tokens=400, temperature=0.7, seed=1, ignore_eos=True, stream=True)
        [replica_request] = parse_generate_request(wanted, RequestContext(lost.status().card, 60.0)).requests
        policy = FailoverPolicy(3, lambda error: again.append(error.code))
        answers = pipeline(ThenElsewhere(lost, generator), policy)
        tokens: list[int] = []
        async with aclosing(answers.stream(replica_request, free())) as items:
            async for item in items:
                if isinstance(item, Chunk):
                    if not tokens:
                        os.kill(lost._engine.pid, signal.SIGKILL)  # type: ignore[attr-defined]
                    tokens += item.token_ids
        assert again == ["replica_lost"]
        assert lost.status().failure == "the engine's process has ended (status -9)"
        whole = [item async for item in generator.stream(replica_request)]
        assert tokens == [token for item in whole if isinstance(item, Chunk) for token in item.token_ids]
        with pytest.raises(ReplicaStopping, match="has ended"):
            await blocks(lost._engine, request())
        with pytest.raises(ReplicaStopping, match="has ended"):
            await lost._engine.control(CheckWeights(Weights(1, settings.model, settings.model)))
        lost.close()

    async def test_closing_ends_what_waits(self, settings: Settings) -> None:
        engine = await start(settings, path_of("HANGING"))
        waiting = asyncio.create_task(blocks(engine, request()))
        await eventually(lambda: bool(engine._requests))
        engine.close()
        with pytest.raises(ReplicaStopping, match="shutting down"):
            await waiting
        with pytest.raises(ReplicaStopping, match="shutting down"):
            await blocks(engine, request())
        assert engine.failure is None

    async def test_an_engine_that_fails_says_where(self, settings: Settings) -> None:
        engine = await start(settings, path_of("FAILING"))
        with pytest.raises(EngineFailed, match=r"ZeroDivisionError in .*process_deps, line "):
            await blocks(engine, request())
        assert str(engine.failure).startswith("ZeroDivisionError in ")
        with pytest.raises(ReplicaStopping, match="the engine stopped: ZeroDivisionError"):
            await blocks(engine, request())
        engine.close()

    async def test_a_step_that_takes_too_long_ends_the_process(self, settings: Settings) -> None:
        engine = await start(settings, path_of("HANGING"), stall_timeout_s=0.5)
        with pytest.raises(ReplicaLost, match=r"the engine's step has taken .* s, allowed are 0.5"):
            await blocks(engine, request())
        await eventually(lambda: not alive(engine.pid))
        assert "allowed are 0.5" in str(engine.failure)
        engine.close()

    @pytest.mark.parametrize("level", [0, 2])
    async def test_a_process_that_stands_is_not_taken_for_hung(self, settings: Settings, level: int) -> None:
        """Its thread reports while a request waits. Requests go on afterwards, or move on if it is killed."""
        engine = await start(settings)
        whole = await blocks(engine, request())
        await engine.control(SetPause(PauseState(1, True, level)))
        for name in ("b", "lost"):
            waiting = asyncio.create_task(blocks(engine, request(name)))
            await eventually(lambda: engine.state().num_waiting == 1)
            for _ in range(3):
                last = engine._last_step
                await eventually(lambda: engine._last_step > last)  # noqa: B023 - called at once
            assert (engine.failure, engine.state().paused, engine.state().sleep_level) == (None, True, level)
            if name == "lost":
                os.kill(engine.pid, signal.SIGKILL)
                with pytest.raises(ReplicaLost):
                    await waiting
            else:
                await engine.control(SetPause(PauseState(2)))
                done = await waiting
                assert [block.token_ids for block in done] == [block.token_ids for block in whole]
                await eventually(lambda: not engine.state().paused)
                await engine.control(SetPause(PauseState(3, True, level)))
        engine.close()

    async def test_closing_ends_a_process_that_stands(self, settings: Settings) -> None:
        engine = await start(settings)
        await engine.control(SetPause(PauseState(1, True, 1)))
        waiting = asyncio.create_task(blocks(engine, request()))
        await eventually(lambda: engine.state().num_waiting == 1)
        engine.close()
        with pytest.raises(ReplicaStopping):
            await waiting
        assert not alive(engine.pid)

    async def test_a_stopped_process_is_killed_and_its_requests_go_on_elsewhere(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "HEARTBEAT_TIMEOUT_S", 1.0)
        engine = await start(settings, path_of("HANGING"))
        waiting = asyncio.create_task(blocks(engine, request()))
        await eventually(lambda: bool(engine._requests))
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(ReplicaLost, match=r"the engine's process has been silent for .* s, allowed are 1"):
            await waiting
        await eventually(lambda: not alive(engine.pid))
        assert "silent" in str(engine.failure)
        engine.close()

    async def test_a_long_step_is_no_silence(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = await start(settings, path_of("HANGING"))
        ends: list[float] = []
        monkeypatch.setattr(engine._heartbeats, "observe", lambda: ends.append(engine._heartbeats.poll()))
        waiting = asyncio.create_task(blocks(engine, request()))
        await eventually(lambda: len(ends) > 3)
        engine.close()
        with pytest.raises(ReplicaStopping):
            await waiting

    async def test_only_what_may_hold_up_python_may_be_silent_for_longer(self, clock: Clock) -> None:
        engine = EngineProcessClient(None, lambda added: None, 60.0, clock)  # type: ignore[arg-type]

        def hang(seconds: float) -> str | None:
            for _ in range(round(seconds / POLL_S)):
                clock.now += POLL_S
                why = engine._hang()
            return why

        assert hang(HEARTBEAT_TIMEOUT_S) is None
        assert str(hang(POLL_S)).endswith("silent for 7 s, allowed are 7")
        engine._calls[0] = asyncio.get_running_loop().create_future()  # reads weights
        assert hang(50.0) is None
        assert str(hang(5.0)).endswith("allowed are 60")
        engine.received(AT_REPLICA.content([AT_REPLICA.encode(EngineAlive())]))
        engine._calls.clear()
        assert hang(HEARTBEAT_TIMEOUT_S) is None

    async def test_a_control_command_may_take_the_engines_thread_for_longer_than_a_step(self, clock: Clock) -> None:
        engine = EngineProcessClient(None, lambda added: None, 60.0, clock)  # type: ignore[arg-type]
        engine._add("request")
        for controlled in (True, False):
            for _ in range(61):
                clock.now += 1.0
                engine.received(AT_REPLICA.content([AT_REPLICA.encode(EngineAlive(controlled))]))
            assert (engine._hang() is None) is controlled

    async def test_a_checkpoint_that_cannot_be_loaded(self, settings: Settings, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError):
            await start(settings.model_copy(update={"model": str(tmp_path)}))

    async def test_it_ends_with_its_replica(self, settings: Settings) -> None:
        program = subprocess.Popen(
            [sys.executable, __file__, settings.model], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert program.stdout is not None
        engine = int(await asyncio.to_thread(program.stdout.readline))
        assert alive(engine)
        program.kill()
        program.wait()
        program.stdout.close()
        await eventually(lambda: not alive(engine))


async def _replica(model: str) -> None:
    engine = await start(Settings(model=model, device="cpu"))
    print(engine.pid, flush=True)  # noqa: T201 - the test reads it
    await blocks(engine, GenerationRequest("long", (5, 6), max_new_tokens=1900))
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(_replica(sys.argv[1]))
