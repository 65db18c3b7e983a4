"""Checkpoints on disk: what loads, what does not and what the error names."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.errors import CheckpointError
from service.model import Checkpoint, LoadOptions, load_checkpoint, resolve, save_checkpoint, weights
from service.model.config import Shard
from service.model.families import FAMILIES
from service.model.files import open_file
from tests.tiny import ALL_NAMES, EXPERTS, EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, tiny_checkpoint

FIRST = GOLDEN / GOLDEN_NAMES[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the first golden checkpoint, to be spoilt."""
    return Path(shutil.copytree(FIRST, tmp_path / "checkpoint"))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return {f"{type(m).__name__}.{name}": t for m in checkpoint.networks for name, t in m.state_dict().items()}


def assert_same(first: Checkpoint, second: Checkpoint) -> None:
    left, right = state(first), state(second)
    assert left.keys() == right.keys()
    for name, weight in left.items():
        assert torch.equal(weight, right[name]), name


class TestLoading:
    def test_loaded_modules_are_for_inference(self) -> None:
        checkpoint = load_checkpoint(FIRST)
        assert not checkpoint.backbone.training
        assert not any(weight.requires_grad for weight in state(checkpoint).values())
        assert (checkpoint.device, checkpoint.dtype) == (torch.device("cpu"), torch.float32)
        assert not any(t.is_meta for t in (*state(checkpoint).values(), *checkpoint.backbone.buffers()))

    def test_a_path_as_text_and_with_a_home(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(folder.parent))
        assert load_checkpoint(str(folder)).path == folder
        assert load_checkpoint("~/checkpoint").path == folder

    def test_sharded_with_an_index(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        names = sorted(weights)
        shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, part in shards.items():
            save_file({name: weights[name] for name in part}, folder / file)
        index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "model.safetensors").unlink()
        assert_same(load_checkpoint(folder), load_checkpoint(FIRST))

    @pytest.mark.parametrize("stored", [False, True])
    def test_tied_embeddings_with_or_without_a_stored_head(self, folder: Path, stored: bool) -> None:
        change_weights(folder, lambda w: w.pop("lm_head.weight"))
        if stored:
            change_weights(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
        change_config(folder, tie_word_embeddings=True)
        backbone = load_checkpoint(folder).backbone
        assert backbone.lm_head.weight is backbone.embed_tokens.weight

    def test_a_file_is_opened_anew_for_every_few_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[Path] = []

        def opening(file: Path, *options: str) -> Any:
            opened.append(file)
            return open_file(file, *options)

        monkeypatch.setattr(weights, "open_file", opening)
        whole, counts = load_checkpoint(FIRST), [len(opened)]
        monkeypatch.setattr(weights, "_MAX_MAPPED", 2**17)
        assert_same(load_checkpoint(FIRST), whole)
        counts.append(len(opened) - counts[0])
        assert counts[0] == 2  # for its names, and for all weights
        assert 5 < counts[1] < 20  # 1.1 MB

    @pytest.mark.parametrize(
        ("generation", "expected"),
        [({"eos_token_id": 7}, (510, 7)), ({"eos_token_id": [9, 510]}, (510, 9)), ({}, (510,)), (None, (510,))],
    )
    def test_the_end_tokens_of_config_and_generation_config_are_joined(
        self, folder: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]
    ) -> None:
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        assert load_checkpoint(folder).config.eos_token_ids == expected


class TestErrors:
    @pytest.mark.parametrize(
        "name",
        [
            "lm_head.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "mrp_modules.0.model.layers.1.self_attn.q_norm.weight",
        ],
    )
    def test_a_missing_weight_is_named(self, folder: Path, name: str) -> None:
        change_weights(folder, lambda weights: weights.pop(name))
        with pytest.raises(CheckpointError, match=f"weight {name!r} is missing"):
            load_checkpoint(folder)

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("lm_head.weight", (512, 63)),
            ("model.layers.0.self_attn.q_proj.weight", (64, 63)),
            ("model.layers.0.mlp.gate_proj.weight", (128,)),
        ],
    )
    def test_a_misshaped_weight_is_named_with_both_shapes(
        self, folder: Path, name: str, shape: tuple[int, ...]
    ) -> None:
        change_weights(folder, lambda weights: weights.update({name: torch.zeros(shape)}))
        with pytest.raises(CheckpointError, match=rf"{name}.*{re.escape(str(list(shape)))}.*config\.json implies"):
            load_checkpoint(folder)

    def test_parts_of_a_fused_weight_must_each_have_their_own_shape(self, folder: Path) -> None:
        """Together they would fit: 64 + 32 + 32 rows = 48 + 48 + 32."""

        def shift(weights: dict[str, Tensor]) -> None:
            prefix = "model.layers.0.self_attn."
            weights[f"{prefix}q_proj.weight"] = torch.zeros(48, 64)
            weights[f"{prefix}k_proj.weight"] = torch.zeros(48, 64)

        change_weights(folder, shift)
        with pytest.raises(CheckpointError, match=r"q_proj\.weight"):
            load_checkpoint(folder)


def written(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


INDEX, ALL_FAMILIES = "model.safetensors.index.json", ", ".join(sorted(FAMILIES))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: change_weights(folder, lambda weights: weights.update({"model.extra": torch.zeros(2)})),
            r"1 weights are not used, first: model\.extra$",
        ),
        (
            lambda folder: change_config(folder, num_nextn_predict_layers=0),
            r"weights are not used, first: mrp_modules\.",
        ),
        *(
            (spoil, r"model\.safetensors is not a readable safetensors file")
            for spoil in (
                truncated, *(written("model.safetensors", text) for text in (b"", b"not a tensor file", b"\x00" * 64))
            )
        ),
        (written("generation_config.json", "[1"), r"generation_config\.json cannot be read"),
        (pickled, r"model\.safetensors is missing \(only safetensors are read\)"),
        (written(INDEX, '{"weight_map": {"a": "model-1.safetensors"}}'), r"model-1\.safetensors is missing"),
        *(
            (written(INDEX, text), r"index\.json cannot be read: `weight_map` with a file for every weight is")
            for text in ("{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}')
        ),
        *(  # shards lie in the folder
            (written(INDEX, json.dumps({"weight_map": {"a": shard}})), r"checkpoint: other\.safetensors is missing")
            for shard in ("../other.safetensors", "/etc/other.safetensors")
        ),
        (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
        *((written("config.json", text), r"config\.json cannot be read") for text in (b"", b"{", b"\xff\xfe")),
        *(
            (written("config.json", text), rf"model_type is {kind}, supported are {ALL_FAMILIES}$")
            for text, kind in (('{"model_type": "llama"}', "'llama'"), ("{}", "None"), ("[]", "None"))
        ),
    ],
)  # fmt: skip
def test_a_spoilt_checkpoint_is_refused_by_its_fault(
    folder: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(folder)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


class TestNames:
    @pytest.mark.parametrize(
        "name", ["nothing-here", "./nothing/here", "/nothing/here", "a/b/c", "~/nothing", "name@main", "@a/b"]
    )
    def test_a_text_that_cannot_be_a_hub_name_is_refused(self, name: str) -> None:
        with pytest.raises(CheckpointError, match="neither a folder nor a hub name such as 'owner/model'"):
            resolve(name)

    def test_a_hub_name_is_fetched_without_code_or_pickle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[tuple[str, str | None, list[str]]] = []

        def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
            calls.append((name, revision, allow_patterns))
            return str(FIRST)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert load_checkpoint("heavyball/sdar-1_7b-mrp-3lyr").path == FIRST
        assert calls[0][:2] == ("heavyball/sdar-1_7b-mrp-3lyr", None)
        assert not {pattern for pattern in calls[0][2] if pattern.endswith((".bin", ".py", ".pt", "*"))}
        assert resolve("heavyball/sdar-1_7b-mrp-3lyr@v1.0") == FIRST
        assert calls[1][:2] == ("heavyball/sdar-1_7b-mrp-3lyr", "v1.0")

    @pytest.mark.parametrize("error", [RepositoryNotFoundError, LocalEntryNotFoundError])
    @pytest.mark.parametrize(
        ("name", "there", "fetched"),
        [
            ("heavyball/sdar-1.7b-mrp-3lyr", "heavyball/sdar-1_7b-mrp-3lyr", True),
            ("JetLM/SDAR-1_7B-Chat", "JetLM/SDAR-1.7B-Chat", True),
            ("a/b-1_7b", "a/b-1_7b", True),
            ("a/b-1_7b", "a/b-17b", False),
            ("a/b_c", "a/b.c", False),  # no number
        ],
    )
    def test_a_name_that_is_not_found_is_tried_in_the_other_spelling(
        self,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        error: type[Exception],
        name: str,
        there: str,
        fetched: bool,
    ) -> None:
        def snapshot_download(repository: str, *, revision: str | None, **_: object) -> str:
            if repository == there and revision == "v1":
                return str(FIRST)
            raise error.__new__(error, f"no {repository}")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        with nullcontext() if fetched else pytest.raises(CheckpointError, match=f"'{name}@v1' could not be fetched"):
            assert resolve(f"{name}@v1") == FIRST
        messages = [f"'{name}' was not found on the hub, and '{there}' is taken"]
        assert caplog.messages == (messages if fetched and name != there else [])

    def test_a_hub_that_cannot_be_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def snapshot_download(name: str, **_: object) -> str:
            raise ConnectionError("no route\nto the hub")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        with pytest.raises(CheckpointError, match="'owner/model' could not be fetched from the hub: no route to the"):
            resolve("owner/model")


class TestExperts:
    """Experts are one parameter each of a layer, and many weights in files, or one."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(GOLDEN / EXPERTS_NAME, tmp_path / "checkpoint"))

    @pytest.mark.parametrize("shard", [Shard(), Shard(0, 2), Shard(1, 2)], ids=str)
    def test_all_experts_in_one_weight_are_the_same(self, folder: Path, shard: Shard) -> None:
        change_weights(folder, fuse)
        options = LoadOptions(shard=shard)
        assert_same(load_checkpoint(folder, options), load_checkpoint(GOLDEN / EXPERTS_NAME, options))

    def test_another_shape_of_all_in_one_is_named(self, folder: Path) -> None:
        change_weights(folder, lambda weights: (fuse(weights), weights.update({DOWN: weights[DOWN][:7]})))
        with pytest.raises(CheckpointError, match=r"down_proj' has shape \[7, 64, 48\], .* \[8, 64, 48\]"):
            load_checkpoint(folder)

    def test_mrp_with_experts_is_not_supported(self, tmp_path: Path) -> None:
        """Its layers are dense, so that weights of experts in it are named as what is not used."""
        made = tiny_checkpoint(dtype=torch.float32, **EXPERTS)
        save_checkpoint(tmp_path, made.raw, made.backbone, made.mrp)
        name = "mrp_modules.0.model.layers.0.mlp.experts.0.up_proj.weight"
        change_weights(tmp_path, lambda weights: weights.update({name: torch.zeros(2)}))
        with pytest.raises(CheckpointError, match="MRP's layers are dense"):
            load_checkpoint(tmp_path)


PROJECTIONS = ("gate", "up", "down")
DOWN = "model.layers.1.mlp.experts.down_proj"


def fuse(weights: dict[str, Tensor]) -> None:
    """Puts all experts of each layer into one weight, as transformers 5 holds them."""
    for layer in (1, 2):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            torch.stack([weights.pop(f"{prefix}{number}.{leaf}_proj.weight") for number in range(8)])
            for leaf in PROJECTIONS
        )
        weights |= {f"{prefix}gate_up_proj": torch.cat([gate, up], 1), f"{prefix}down_proj": down}


class TestSaving:
    @pytest.mark.parametrize("name", ALL_NAMES)
    def test_a_round_trip_gives_the_published_file_again(self, tmp_path: Path, name: str) -> None:
        loaded = load_checkpoint(GOLDEN / name)
        save_checkpoint(tmp_path / "out", loaded.raw, loaded.backbone, loaded.mrp)
        before, after = (load_file(p / "model.safetensors") for p in (GOLDEN / name, tmp_path / "out"))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
        assert_same(load_checkpoint(tmp_path / "out"), loaded)

    @pytest.mark.parametrize("tied", [False, True])
    def test_a_bare_backbone_and_tied_embeddings(self, tmp_path: Path, tied: bool) -> None:
        made = tiny_checkpoint(torch_dtype=None, num_nextn_predict_layers=0, tie_word_embeddings=tied)
        save_checkpoint(tmp_path, made.raw, made.backbone, None)
        assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
        assert_same(load_checkpoint(tmp_path, LoadOptions(dtype=torch.float64)), made)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=repr)
def test_sizes_beyond_memory_are_an_error_of_the_checkpoint(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def build(*_: object) -> None:
        raise error

    monkeypatch.setattr("service.model.checkpoint.build_checkpoint", build)
    with pytest.raises(CheckpointError, match="no memory for a checkpoint of these sizes"):
        load_checkpoint(GOLDEN / GOLDEN_NAMES[0])
