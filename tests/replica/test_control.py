"""Control of a replica, whose engine a test scripts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.engine_process.messages import EngineInfo, EngineReply
from service.messages.replica_status import ControlCommand, UpdateWeights
from service.messages.wire import Weights
from service.model import load_checkpoint
from service.replica.control import ReplicaControl
from service.settings.settings import Settings
from tests.gateway.doubles import CARD
from tests.tiny import GOLDEN, GOLDEN_NAMES


async def test_an_update_takes_the_calibration_of_as_many_devices_as_divide_activations(tmp_path: Path) -> None:
    config = replace(load_checkpoint(GOLDEN / GOLDEN_NAMES[0]).config, quantization="w8a8")
    weights = Weights(1, str(tmp_path), CARD.weights.base)

    async def control(command: ControlCommand) -> EngineReply:
        assert command == UpdateWeights(weights)
        return EngineReply(0, weights=weights)

    info = EngineInfo(str(tmp_path), config, 2, 128, 4, deterministic=False, weights=Weights())
    engine: Any = SimpleNamespace(info=info, control=control)
    replica = ReplicaControl("r0", CARD, engine, Settings())
    result = await replica.run(UpdateWeights(weights))
    assert result.error is None
    assert replica.card.weights.version == 1
    assert "has no quality.w8a8-2.json" in (replica.card.quality.missing or "")
