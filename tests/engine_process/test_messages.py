"""Messages within a replica: between it and its engine's process, and between the ranks of a model."""

from typing import Any

import pytest
import torch

from service.constraints import Constraint
from service.decode.block import Block, Pick, PositionLogprobs, Step
from service.decode.mode import ScoreMode
from service.decode.modes import MODES
from service.engine import (
    BlockEvent,
    BlockProgress,
    EngineState,
    ForwardCounts,
    GenerationRequest,
    SamplingParams,
    Stats,
)
from service.engine.forward.model_forward import ShapePolicy
from service.engine.forward.partition import RowGroup
from service.engine.forward.rows import Row
from service.engine.request import LogprobsRequest
from service.engine_process import messages
from service.engine_process.messages import EngineInfo
from service.errors import EngineFailed
from service.ipc.connections import Malformed
from service.ipc.messagepack import MessagePack
from service.messages.replica_status import CheckWeights, PauseState, SetPause, UpdateWeights
from service.messages.wire import Weights
from service.model import LoadOptions, load_checkpoint
from service.model.config import Shard
from service.model.device import DeviceMemory
from service.parallel import messages as ranks
from service.settings.settings import Settings
from tests.engine.helpers import ALL_MODES
from tests.tiny import EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, LLADA2_NAME, LLADA22_NAME

STATE = EngineState(1, 2, 3, 4)
STATS = Stats(ForwardCounts(1, 2, 3), 7, mrp_steps=2, first_block_s=0.25)
STEPS = (
    Step("denoise", (Pick(0, 5, 0.5, PositionLogprobs(((5, -0.5),), (-1.0,))),), gains=((0.5, 1),)),
    Step("verify", (Pick(1, 6, 1.0),), drafted=(Pick(1, 6, 0.75),), accepted=1),
    Step("denoise", remasked=(1,), moved=(0, 2, -1)),
)
EVENT = BlockEvent("a", 3, (5, 6), STATS, "stop", STEPS, constraint_met=True, version=4)
FOUND = BlockEvent("a", 0, (), STATS, "stop", position_logprobs=((3, PositionLogprobs(((5, -0.5),), (-1.0,))),))


def crossed(codec: MessagePack, message: Any) -> Any:
    [received] = codec.decode(codec.content([codec.encode(message)]))
    return received


@pytest.mark.parametrize("params", [*ALL_MODES, ScoreMode()], ids=lambda params: params.name)
def test_a_request_comes_back_equal(params: Any) -> None:
    request = GenerationRequest(
        "a",
        (1, -1),
        params,
        SamplingParams(0.5, seed=2**63 - 1),
        3,
        frozenset({9}),
        logprobs=LogprobsRequest(2, (7,)),
        version=3,
    )
    for constraint in (None, Constraint.regex("a+")):
        sent = messages.Submit(request, constraint)
        assert crossed(messages.AT_ENGINE, sent) == sent
    assert {mode.name for mode in ALL_MODES} == set(MODES)


@pytest.mark.parametrize("name", [GOLDEN_NAMES[0], EXPERTS_NAME, LLADA2_NAME, LLADA22_NAME])
def test_every_message_of_the_engines_process_comes_back_equal(name: str) -> None:
    info = EngineInfo(
        "folder", load_checkpoint(GOLDEN / name).config, 1, 128, 4, deterministic=False, weights=Weights()
    )
    sent = [
        messages.StepOutputs([EVENT, FOUND, BlockProgress("a", 3, 4, STEPS, 0.5)], ["b"], STATE, "why", b"x"),
        messages.Compiled("a"),
        messages.EngineAlive(),
        messages.EngineReply(0, info=info),
        messages.EngineReply(3, None, Weights(1, "m"), PauseState(2, True)),
    ]
    assert [crossed(messages.AT_REPLICA, message) for message in sent] == sent


def test_every_message_to_the_engines_process_comes_back_equal() -> None:
    weights = Weights(3, "n", "m", ("m", "n"), 2, partial=True)
    pause = SetPause(PauseState(1, True, 2), wait=True)
    commands = [messages.Start("{}"), CheckWeights(weights), UpdateWeights(weights), pause]
    sent = [messages.Abort("a"), *(messages.EngineCall(1, command) for command in commands)]
    assert [crossed(messages.AT_ENGINE, message) for message in sent] == sent


def test_settings_cross_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(port=1001, api_keys="a", admin_keys="b", model="m", log_level="info")
    monkeypatch.setenv("MRP_SERVE_PORT", "nonsense")
    assert Settings.from_json(settings.to_json()) == settings.model_copy(update={"api_keys": (), "admin_keys": ()})


def test_a_message_of_the_wrong_direction_is_refused() -> None:
    for codec, message in (
        (messages.AT_ENGINE, messages.StepOutputs([], [], STATE)),
        (messages.AT_REPLICA, messages.Submit(GenerationRequest("a", (1,)))),
        (ranks.AT_WORKER, ranks.WorkerFailed(EngineFailed("x"))),
    ):
        with pytest.raises(Malformed):
            crossed(codec, message)


def test_every_message_of_ranks_comes_back_equal() -> None:
    options = LoadOptions(torch.bfloat16, "cuda:1", shard=Shard(1, 2))
    sent = [
        ranks.Join(1, 2, "cpu", "store", 60.0, ordered=True, threads=3),
        ranks.LoadCheckpoint("folder", options),
        ranks.LoadShard(("folder", "other"), options, newest_only=True),
        ranks.ChangeState("restore_cache"),
        ranks.OpenNetworks(8, ShapePolicy(1, fixed_shapes=True), "eager", cuda_graphs=True, kv_cache_dtype="int8"),
    ]
    assert [crossed(ranks.AT_WORKER, message) for message in sent] == sent
    answers = [ranks.WorkerReady(), ranks.WorkerReady(DeviceMemory("cpu", 1, 2))]
    assert [crossed(ranks.AT_DRIVER, message) for message in answers] == answers


def test_rows_of_one_sequence_share_their_pages() -> None:
    pages = [4, 5, 6]
    rows = [Row(Block((1, -1)), 2, pages, writes_kv=False), Row(Block((1, 3)), 1, pages, writes_kv=True)]
    message = crossed(ranks.AT_WORKER, ranks.ForwardCommand.from_group("backbone", RowGroup(rows, range(2), None)))
    first, second = message.group.members
    assert first.pages is second.pages
    assert list(first.pages) == [4, 5]
    assert [(row.state, row.index, row.writes_kv) for row in (first, second)] == [
        (row.state, row.index, row.writes_kv) for row in rows
    ]
