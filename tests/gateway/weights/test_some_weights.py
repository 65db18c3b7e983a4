"""POST /admin/weights with some of the weights: MRP stays, and a replica that restarts gets all parts."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from service.decode.modes import Direct
from service.engine import GenerationRequest
from tests.gateway.generate.helpers import PROMPT, ask, body
from tests.gateway.helpers import eventually
from tests.gateway.weights.replicas import fresh_answer, listed, refused, update
from tests.model.test_weight_update import kept_weights, one_matrix
from tests.other_weights import FIRST, other_weights

#: MRP decides tokens of this answer, so it shows which MRP a replica has
REQUEST = body(max_new_tokens=24, ignore_eos=True, mode="direct", mrp_steps=3)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = other_weights(tmp_path_factory.mktemp("weights") / "backbone")
    return kept_weights(folder, lambda name: not name.startswith("mrp"))


@pytest.fixture(scope="module")
def mrp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = other_weights(tmp_path_factory.mktemp("weights") / "mrp", seed=5)
    return kept_weights(folder, lambda name: name.startswith("mrp"))


def joined_answer(folder: Path, *parts: Path) -> list[int]:
    """The answer of a service that starts with the first checkpoint and these parts in one folder."""
    joined = other_weights(folder)
    weights = load_file(FIRST / "model.safetensors")
    for part in parts:
        weights |= load_file(part / "model.safetensors")
    save_file(weights, joined / "model.safetensors")
    return fresh_answer(joined, GenerationRequest("x", tuple(PROMPT), Direct(3), max_new_tokens=24))


async def test_mrp_stays_beside_a_new_backbone_and_answers_name_its_version(service, http, backbone, mrp, tmp_path):
    first = await ask(http, REQUEST)
    assert (first["stats"]["weight_version"], first["stats"]["mrp_version"]) == (0, 0)
    answer = await update(http, backbone, version=7)
    assert (answer["version"], answer["mrp_version"]) == (7, 0)
    expected = joined_answer(tmp_path / "a", backbone)
    for _ in service.replicas:
        answer = await ask(http, REQUEST)
        assert answer["token_ids"] == expected
        assert (answer["stats"]["weight_version"], answer["stats"]["mrp_version"]) == (7, 0)
    assert [row["mrp_version"] for row in (await listed(http))["replicas"]] == [0, 0]
    answer = await update(http, mrp, version=8, partial=True)
    assert (answer["version"], answer["mrp_version"]) == (8, 8)
    assert (await ask(http, REQUEST))["token_ids"] == joined_answer(tmp_path / "b", backbone, mrp)


async def test_a_restarted_replica_gets_every_part_and_a_whole_checkpoint_replaces_them(
    service, http, backbone, mrp, tmp_path
):
    """A restarted replica starts with the setting `model` and gets the parts of all updates."""
    matrix = kept_weights(other_weights(tmp_path / "matrix", seed=9), one_matrix)
    expected = joined_answer(tmp_path / "joined", mrp, backbone, matrix)
    await update(http, mrp, partial=True)
    await update(http, backbone)
    assert (await update(http, matrix, partial=True))["mrp_version"] == 1
    assert [(await ask(http, REQUEST))["token_ids"] for _ in range(2)] == [expected] * 2
    service.restart(1)
    await ask(http, REQUEST)
    await eventually(lambda: service.replicas[1].status().card.weights.version == 3)
    assert [(await ask(http, REQUEST))["token_ids"] for _ in range(2)] == [expected] * 2

    whole = other_weights(tmp_path / "whole", seed=3)
    assert (await update(http, whole))["mrp_version"] == 4
    assert service.replicas[0].status().card.weights.folders == (str(whole),)
    assert (await ask(http, REQUEST))["token_ids"] == joined_answer(tmp_path / "replaced", whole)


async def test_a_part_is_refused_without_the_field_partial(steady_http, mrp):
    error: dict[str, Any] = await refused(steady_http, 422, model=str(mrp))
    assert (error["code"], error["param"]) == ("weights_refused", "model")
    assert (await refused(steady_http, 422, model=str(mrp), partial="yes"))["param"] == "partial"
    assert (await listed(steady_http))["version"] == 0
