"""POST /admin/weights with some of the weights: MRP stays, and a replica that starts again gets all parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from service.decode.modes import Direct
from service.engine import Engine, GenerationRequest
from service.model import load_checkpoint
from service.routing import failover
from tests.gateway.conftest import UNMEASURED
from tests.gateway.generate.helpers import PROMPT, ask, body
from tests.gateway.helpers import eventually
from tests.gateway.weights.replicas import Replicas
from tests.gateway.weights.test_weights import give, known, refused
from tests.model.test_weight_update import kept_weights, one_matrix
from tests.other_weights import FIRST, other_weights

#: MRP decides tokens of this answer, so it shows which MRP a replica has
REQUEST = body(max_new_tokens=24, ignore_eos=True, mode="direct", mrp_steps=3)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_PAUSE_S", 0.001)
    monkeypatch.setattr(failover, "_LONGEST_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = other_weights(tmp_path_factory.mktemp("weights") / "backbone")
    return kept_weights(folder, lambda name: not name.startswith("mrp"))


@pytest.fixture(scope="module")
def mrp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = other_weights(tmp_path_factory.mktemp("weights") / "mrp", seed=5)
    return kept_weights(folder, lambda name: name.startswith("mrp"))


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    replicas = Replicas(FIRST)
    yield replicas
    replicas.close()


def fresh(folder: Path, *parts: Path) -> list[int]:
    """The answer of a service that starts with the first checkpoint and these parts in one folder."""
    joined = other_weights(folder)
    weights = load_file(FIRST / "model.safetensors")
    for part in parts:
        weights |= load_file(part / "model.safetensors")
    save_file(weights, joined / "model.safetensors")
    request = GenerationRequest("x", tuple(PROMPT), Direct(3), max_new_tokens=24)
    return list(Engine(load_checkpoint(joined), deps=UNMEASURED).generate([request])[0].token_ids)


async def test_mrp_stays_beside_a_new_backbone_and_answers_tell_its_version(
    replicas: Replicas, backbone: Path, mrp: Path, tmp_path: Path
) -> None:
    async with replicas.ingress() as http:
        first = await ask(http, REQUEST)
        assert (first["stats"]["weight_version"], first["stats"]["mrp_version"]) == (0, 0)
        update = await give(http, backbone, version=7)
        assert (update["version"], update["mrp_version"]) == (7, 0)
        for _ in range(2):
            answer = await ask(http, REQUEST)
            assert answer["token_ids"] == fresh(tmp_path / f"a{_}", backbone)
            assert (answer["stats"]["weight_version"], answer["stats"]["mrp_version"]) == (7, 0)
        assert [one["mrp_version"] for one in (await known(http))["replicas"]] == [0, 0]
        update = await give(http, mrp, version=8, partial=True)
        assert (update["version"], update["mrp_version"]) == (8, 8)
        assert (await ask(http, REQUEST))["token_ids"] == fresh(tmp_path / "b", backbone, mrp)


async def test_a_replica_that_starts_again_has_every_part(
    replicas: Replicas, backbone: Path, mrp: Path, tmp_path: Path
) -> None:
    """It begins with the setting `model` and gets the parts of all updates."""
    one = kept_weights(other_weights(tmp_path / "one", seed=9), one_matrix)
    expected = fresh(tmp_path / "joined", mrp, backbone, one)
    async with replicas.ingress() as http:
        await give(http, mrp, partial=True)
        await give(http, backbone)
        assert (await give(http, one, partial=True))["mrp_version"] == 1
        assert [(await ask(http, REQUEST))["token_ids"] for _ in range(2)] == [expected] * 2
        replicas.start_again(1)
        assert [(await ask(http, REQUEST))["token_ids"] for _ in range(4)] == [expected] * 4
        await eventually(lambda: replicas.generators[1].status().card.weights.version == 3)
        assert [(await ask(http, REQUEST))["token_ids"] for _ in range(4)] == [expected] * 4


async def test_a_whole_checkpoint_replaces_all_parts(replicas: Replicas, backbone: Path, tmp_path: Path) -> None:
    whole = other_weights(tmp_path / "whole", seed=3)
    async with replicas.ingress() as http:
        await give(http, backbone)
        assert (await give(http, whole))["mrp_version"] == 2
        assert replicas.generators[0].status().card.weights.folders == (str(whole),)
        assert (await ask(http, REQUEST))["token_ids"] == fresh(tmp_path / "joined", whole)


async def test_a_part_is_taken_only_by_that_name(replicas: Replicas, mrp: Path) -> None:
    async with replicas.ingress() as http:
        detail: dict[str, Any] = await refused(http, 422, model=str(mrp))
        assert (detail["code"], detail["param"]) == ("weights_refused", "model")
        assert (await refused(http, 422, model=str(mrp), partial="yes"))["param"] == "partial"
        assert (await known(http))["version"] == 0
