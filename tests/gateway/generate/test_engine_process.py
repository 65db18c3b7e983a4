"""A replica whose engine has processes of its own: it answers as one in the same process does, and ends with them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from service.constraints import Constraint
from service.engine import BlockEvent, BlockProgress, GenerationRequest
from service.engine.request import LogprobsRequest
from service.engine_process import client as client_module
from service.engine_process.client import EngineProcessClient
from service.engine_process.messages import AT_REPLICA, EngineAlive
from service.errors import CheckpointError, EngineFailed, InvalidRequest, ReplicaLost, ReplicaStopping
from service.ipc.connections import HEARTBEAT_TIMEOUT_S, POLL_S
from service.messages.replica_status import CheckWeights, PauseState, SetPause, UpdateWeights
from service.messages.wire import Chunk, Weights
from service.model import Checkpoint, load_checkpoint
from service.replica.metrics import ReplicaMetrics
from service.replica.replica import Replica
from service.replica.start import start_replica
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from service.telemetry.metrics import SumsData
from tests.gateway.conftest import UNMEASURED
from tests.gateway.doubles import LosesFirst, pipeline, uncharged
from tests.gateway.generate.helpers import CASES, GENERATE, PROMPT, ask, body, essence, golden_body, problem, streamed
from tests.gateway.helpers import eventually, idle, over, replica_request_of
from tests.gateway.local import LocalBackend
from tests.other_weights import other_weights
from tests.parallel.test_failures import alive
from tests.process_deps import path_of
from tests.replicas import load_replica

DEPS = path_of("UNMEASURED")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def remote(settings: Settings, byte_checkpoint: Checkpoint) -> AsyncIterator[Replica]:
    """A replica of a checkpoint whose tokenizer can be constrained."""
    replica = await start_replica("r0", settings.model_copy(update={"model": str(byte_checkpoint.path)}), DEPS)
    assert isinstance(replica.engine, EngineProcessClient)
    yield replica
    process = replica.engine.pid
    replica.close()
    assert not alive(process)


async def start(settings: Settings, deps: str = DEPS, **limits: float) -> EngineProcessClient:
    return await EngineProcessClient.start(settings, ReplicaMetrics().add_sums, deps, **limits)


def request(name: str = "r", **fields: Any) -> GenerationRequest:
    return GenerationRequest(name, tuple(PROMPT), max_new_tokens=16, **fields)


async def block_events(items: AsyncGenerator[BlockEvent | BlockProgress]) -> list[BlockEvent]:
    async with aclosing(items):
        return [item async for item in items if isinstance(item, BlockEvent)]


async def events_if_free(items: AsyncGenerator[BlockEvent | BlockProgress]) -> list[BlockEvent]:
    """The events of a request, none while its id is in use."""
    with suppress(InvalidRequest):
        return await block_events(items)
    return []


async def blocks(engine: Any, request: GenerationRequest) -> list[BlockEvent]:
    return await block_events(engine.generate(request))


class TestAnswers:
    async def test_golden_decodes_of_every_mode_at_once(self, remote):
        async with over(remote) as http:
            answers = await asyncio.gather(*(ask(http, golden_body(case)) for case in CASES))
        assert [answer["token_ids"] for answer in answers] == [case["token_ids"] for case in CASES]
        assert idle(remote)

    @pytest.mark.parametrize(
        "fields",
        [
            {"mode": "speculative", "mrp_steps": 2, "temperature": 0.9, "return_trace": True},
            {"mode": "remask", "return_trace": True},
            {"mode": "direct", "stop": ["😀&"], "max_new_tokens": 40},
        ],
        ids=lambda fields: fields["mode"],
    )
    async def test_answers_equal_those_of_an_engine_in_the_same_process(self, remote, bytewise, fields):
        body_ = body(seed=3) | fields
        async with over(remote) as there, over(bytewise) as local:
            for read in (ask, streamed):
                assert essence(await read(there, body_)) == essence(await read(local, body_))
            steps = body_ | {"stream": True, "stream_steps": True}
            texts = [(await http.post(GENERATE, json=steps)).text for http in (there, local)]
        assert texts[0].count("event: step") == texts[1].count("event: step") > 1

    async def test_counts_come_unasked_and_an_error_of_counting_ends_nothing(self, remote, caplog, monkeypatch):
        """Else the counts would fill the memory of a replica that nobody scrapes."""
        counted: list[SumsData] = []

        def add_sums(sums: SumsData) -> None:
            counted.append(sums)
            raise ZeroDivisionError

        monkeypatch.setattr(remote.engine, "_add_sums", add_sums)
        key = "generation_tokens_total", (("mode", "static"),)
        for number in (1, 2):
            assert (await blocks(remote.engine, request(str(number))))[-1].finish_reason
            await eventually(lambda: sum(amounts.get(key, 0) for amounts, _ in counted) == 16 * number)  # noqa: B023
        assert "counts are lost: ZeroDivisionError in " in caplog.text

    async def test_log_probabilities(self, remote, bytewise):
        wanted = request("logprobs", logprobs=LogprobsRequest(3, (7, 8)))
        there, local = [
            [pick.logprobs for event in await blocks(engine, wanted) for step in event.steps for pick in step.revealed]
            for engine in (remote.engine, bytewise.engine)
        ]
        assert there == local
        assert all(logprobs and len(logprobs.top) == 3 and len(logprobs.by_id) == 2 for logprobs in there)

    async def test_grammars_are_compiled_in_the_engines_process(self, remote):
        async with over(remote) as http:
            for fields, pattern in (({"regex": "(ab|cd){2}e"}, r"(ab|cd){2}e"), ({"choice": ["yes", "no"]}, "yes|no")):
                body_ = {"prompt": "Tom has 5 apples.", "max_new_tokens": 40, "mode": "static"} | fields
                for read in (ask, streamed):
                    assert re.fullmatch(pattern, (await read(http, body_))["text"])
            wrong = await http.post(GENERATE, json={"prompt": "Tom", "regex": "("})
            assert problem(wrong, 422)["param"] == "regex"

    async def test_a_client_that_leaves_before_the_grammar_is_compiled_frees_the_id(self, remote):
        engine: EngineProcessClient = remote.engine  # type: ignore[assignment]
        digits = Constraint.regex("[0-9]{3}")
        leaving = asyncio.create_task(anext(engine.generate(request(), digits)))  # type: ignore[arg-type]
        await asyncio.sleep(0)  # the request is on its way
        with pytest.raises(InvalidRequest, match="is in use"):
            await blocks(engine, request())
        leaving.cancel()
        again = request(stop_token_ids=frozenset(engine.info.config.eos_token_ids))
        async with asyncio.timeout(120):
            while not (events := await events_if_free(engine.generate(again, digits))):
                await asyncio.sleep(0.01)
        assert events[-1].constraint_met
        assert events[-1].stats.queue_s > 0

    async def test_the_time_limit_holds_while_the_grammar_is_compiled(self, remote):
        items = remote.engine.generate(request(timeout_s=0.001), Constraint.regex("[0-9]{5}"))
        [event] = await block_events(items)
        assert (event.finish_reason, event.token_ids) == ("timeout", ())

    async def test_a_client_that_leaves_frees_the_pages_and_the_id(self, remote):
        engine = remote.engine
        async with aclosing(engine.generate(GenerationRequest("twice", (5, 6, 7), max_new_tokens=800))) as items:
            await anext(items)
            with pytest.raises(InvalidRequest, match="is in use"):
                await blocks(engine, request("twice"))
        await eventually(lambda: idle(remote))
        assert (await blocks(engine, request("twice")))[-1].finish_reason


async def test_a_paused_process_does_not_count_as_hung(remote):
    """Its thread reports while a request waits. The request goes on after the pause."""
    engine = remote.engine
    whole = await blocks(engine, request())
    for level in (0, 2):
        await engine.control(SetPause(PauseState(2 * level + 1, True, level)))
        waiting = asyncio.create_task(blocks(engine, request(str(level))))
        await eventually(lambda: engine.state().num_waiting == 1)
        for _ in range(3):
            last = engine._last_step
            await eventually(lambda: engine._last_step > last)  # noqa: B023 - called at once
        assert (engine.failure, engine.state().paused, engine.state().sleep_level) == (None, True, level)
        await engine.control(SetPause(PauseState(2 * level + 2)))
        assert [block.token_ids for block in await waiting] == [block.token_ids for block in whole]
        await eventually(lambda: not engine.state().paused)


# --- ends ------------------------------------------------------------------------------------------


async def assert_continued(first: Replica, other: Replica, kill: Callable[[], None]) -> None:
    """Kills a process of the first replica after the first block. The answer is that of an undisturbed replica."""
    reasons: list[str] = []
    sampled = body(max_new_tokens=160, temperature=0.7, seed=1, ignore_eos=True)
    replica_request = replica_request_of(first.status().card, sampled)
    policy = FailoverPolicy(3, lambda error: reasons.append(error.code))
    tokens: list[int] = []
    async with aclosing(
        pipeline(LosesFirst(first, other, sys.maxsize), policy).stream(replica_request, uncharged())
    ) as items:
        async for item in items:
            if isinstance(item, Chunk):
                if not tokens:
                    kill()
                tokens += item.token_ids
    assert reasons == ["replica_lost"]
    whole = [item async for item in LocalBackend(other).stream(replica_request)]
    assert tokens == [token for item in whole if isinstance(item, Chunk) for token in item.token_ids]


async def test_a_killed_process_loses_no_request_that_another_replica_can_continue(settings, generator, caplog):
    lost = await start_replica("lost", settings, path_of("HANGING_LATER"))
    engine: EngineProcessClient = lost.engine  # type: ignore[assignment]
    await assert_continued(lost, generator, lambda: os.kill(engine.pid, signal.SIGKILL))
    assert lost.status().failure == "the engine's process has ended (status -9)"
    [line] = [line for line in caplog.records if line.getMessage() == lost.status().failure]
    assert (line.requests, len(line.ids)) == (1, 24)
    with pytest.raises(ReplicaStopping, match="has ended"):
        await blocks(engine, request())
    with pytest.raises(ReplicaStopping, match="has ended"):
        await engine.control(CheckWeights(Weights(1, settings.model, settings.model)))
    lost.close()


async def test_a_replica_of_two_ranks_answers_as_one_and_ends_with_a_rank(settings, generator):
    """The drafts are fixed: `auto` drafts by the past of its engine."""
    pair = load_replica("pair", settings.model_copy(update={"tensor_parallel_size": 2}), UNMEASURED)
    try:
        (rank,) = pair.engine.core.ranks.pids  # type: ignore[union-attr]
        async with over(pair) as there, over(generator) as local:
            for plan in ({"mode": "static"}, {"mode": "speculative", "mrp_steps": 2}, {"mode": "remask"}):
                body_ = body(**plan, max_new_tokens=24, temperature=0.9, seed=3, ignore_eos=True)
                assert essence(await ask(there, body_)) == essence(await ask(local, body_))
        assert pair.status().failure is None
        await assert_continued(pair, generator, lambda: os.kill(rank, signal.SIGKILL))
        assert pair.status().failure == "the process of rank 1 has ended"
    finally:
        pair.close()


async def test_an_engine_that_fails_tells_the_line(settings):
    engine = await start(settings, path_of("FAILING"))
    with pytest.raises(EngineFailed, match=r"ZeroDivisionError in .*process_deps, line "):
        await blocks(engine, request())
    assert str(engine.failure).startswith("ZeroDivisionError in ")
    with pytest.raises(ReplicaStopping, match="the engine stopped: ZeroDivisionError"):
        await blocks(engine, request())
    engine.close()


async def test_a_step_that_takes_too_long_ends_the_process(settings):
    engine = await start(settings, path_of("HANGING"), stall_timeout_s=0.5)
    with pytest.raises(ReplicaLost, match=r"the engine's step has taken .* s, allowed are 0.5"):
        await blocks(engine, request())
    await eventually(lambda: not alive(engine.pid))
    assert "allowed are 0.5" in str(engine.failure)
    engine.close()


async def test_a_long_step_is_no_silence_and_a_stopped_process_is_killed(settings, monkeypatch):
    engine = await start(settings, path_of("HANGING"))
    silences: list[float] = []
    monkeypatch.setattr(engine._heartbeats, "observe", lambda: silences.append(engine._heartbeats.poll()))
    waiting = asyncio.create_task(blocks(engine, request()))
    await eventually(lambda: len(silences) > 3)
    monkeypatch.undo()
    monkeypatch.setattr(client_module, "HEARTBEAT_TIMEOUT_S", 1.0)
    os.kill(engine.pid, signal.SIGSTOP)
    with pytest.raises(ReplicaLost, match=r"the engine's process has been silent for .* s, allowed are 1"):
        await waiting
    await eventually(lambda: not alive(engine.pid))
    assert "silent" in str(engine.failure)
    engine.close()


async def test_weights_are_updated_and_closing_ends_paused_requests(settings, make_generator, tmp_path):
    engine = await start(settings)
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
    loaded = make_generator(model=load_checkpoint(other)).engine
    assert [event.token_ids for event in await blocks(loaded, request())] == [event.token_ids for event in after]
    await engine.control(SetPause(PauseState(1, True, 1)))
    waiting = asyncio.create_task(blocks(engine, request()))
    await eventually(lambda: engine.state().num_waiting == 1)
    engine.close()
    with pytest.raises(ReplicaStopping, match="shutting down"):
        await waiting
    with pytest.raises(ReplicaStopping, match="shutting down"):
        await blocks(engine, request())
    assert engine.failure is None
    assert not alive(engine.pid)


async def test_only_work_that_may_hold_up_python_may_be_silent_for_longer(clock):
    engine = EngineProcessClient(None, lambda added: None, 60.0, clock)  # type: ignore[arg-type]

    def hang(seconds: float) -> str | None:
        for _ in range(round(seconds / POLL_S)):
            clock.now += POLL_S
            reason = engine._hang()
        return reason

    assert hang(HEARTBEAT_TIMEOUT_S) is None
    assert str(hang(POLL_S)).endswith("silent for 7 s, allowed are 7")
    engine._calls[0] = asyncio.get_running_loop().create_future()  # reads weights
    assert hang(50.0) is None
    assert str(hang(5.0)).endswith("allowed are 60")
    engine.received(AT_REPLICA.content([AT_REPLICA.encode(EngineAlive())]))
    engine._calls.clear()
    assert hang(HEARTBEAT_TIMEOUT_S) is None


#: starts an engine, prints the id of its process, and is then busy
PARENT = """
import asyncio, sys
from service.engine.request import GenerationRequest
from service.engine_process.client import EngineProcessClient
from service.settings.settings import Settings

async def main(model, deps):
    engine = await EngineProcessClient.start(Settings(model=model, device="cpu"), lambda sums: None, deps)
    print(engine.pid, flush=True)
    async for _ in engine.generate(GenerationRequest("long", (5, 6), max_new_tokens=1900)):
        pass
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_process_ends_with_its_replica(settings):
    command = [sys.executable, "-c", PARENT, settings.model, DEPS]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert parent.stdout is not None
    engine = int(await asyncio.to_thread(parent.stdout.readline))
    assert alive(engine)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await eventually(lambda: not alive(engine))
