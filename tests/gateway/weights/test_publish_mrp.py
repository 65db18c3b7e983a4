"""MRP's trainer gives an ingress new weights of MRP alone: they replace those before, or the service stays as it is."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from service.errors import WeightsConflict, WeightsRefused
from service.messages.wire import Weights
from tests.gateway.generate.helpers import ask
from tests.gateway.weights.replicas import REQUEST, listed
from tests.other_weights import FIRST


def mrp_weights(folder: Path, factor: float) -> str:
    """The module of the golden checkpoint, times a factor."""
    folder.mkdir()
    weights = load_file(FIRST / "model.safetensors")
    mrp = {name: weight * factor for name, weight in weights.items() if name.startswith("mrp_modules.")}
    save_file(mrp, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


async def test_a_newer_mrp_replaces_its_predecessor(make, tmp_path):
    service = make(2)
    http = service.ingress()
    before = await ask(http, REQUEST)
    for version in (1, 2, 3):
        folder = mrp_weights(tmp_path / str(version), 1 + version / 8)
        weights = await service.ingresses[0].publish_mrp(folder, version)
        assert weights.all_folders == (str(FIRST), folder)  # a restarted replica needs no earlier one
        assert (weights.version, weights.mrp_version, weights.abort) == (version, version, False)
    after = await ask(http, REQUEST)
    assert (after["token_ids"], after["stats"]["mrp_version"]) == (before["token_ids"], 3)
    assert [row["mrp_version"] for row in (await listed(http))["replicas"]] == [3, 3]


async def test_why_it_was_not_published_is_returned(make, tmp_path):
    service = make(1)
    http = service.ingress()
    [ingress] = service.ingresses
    assert isinstance(await ingress.publish_mrp(mrp_weights(tmp_path / "nan", torch.nan), 1), WeightsRefused)
    assert (await listed(http))["version"] == 0
    good = mrp_weights(tmp_path / "good", 1.5)
    assert isinstance(await ingress.publish_mrp(good, 4), Weights)
    assert isinstance(await ingress.publish_mrp(mrp_weights(tmp_path / "late", 2.0), 4), WeightsConflict)
    assert (await listed(http))["model"] == good
