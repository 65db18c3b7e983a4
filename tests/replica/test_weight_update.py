"""A weight update of a replica, whose engine a test scripts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.messages.wire import Weights
from service.model import load_checkpoint
from service.replica.messages import EngineInfo
from service.replica.weight_update import WeightUpdater
from service.settings.settings import Settings
from tests.gateway.doubles import CARD
from tests.tiny import GOLDEN, GOLDEN_NAMES


async def test_it_takes_the_calibration_of_as_many_devices_as_divide_activations(tmp_path: Path) -> None:
    config = replace(load_checkpoint(GOLDEN / GOLDEN_NAMES[0]).config, quantization="w8a8")

    async def load_weights(folders: tuple[str, ...], *, newest_only: bool) -> Path:
        assert not newest_only
        return Path(folders[-1])

    async def apply_weights(versions: tuple[int, int], *, abort: bool) -> None:
        pass

    info = EngineInfo(str(tmp_path), config, 2, 128, 4, deterministic=False)
    engine: Any = SimpleNamespace(info=info, load_weights=load_weights, apply_weights=apply_weights)
    updater = WeightUpdater("r0", CARD, engine, Settings(), asyncio.Lock())
    updated = await updater.update(Weights(1, str(tmp_path), CARD.weights.base))
    assert updated.error is None
    assert updater.card.weights.version == 1
    assert "has no quality.w8a8-2.json" in (updater.card.quality.missing or "")
