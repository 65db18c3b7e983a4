"""Weights that load and cannot be right: zeros, and heads beside a tied flag. And tables that nothing reads."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.errors import CheckpointError
from service.model import LoadOptions, load_checkpoint, parse_config
from service.model.config import Shard
from service.model.families import FAMILIES
from service.model.files import read_config
from service.model.weight_update import apply_update, check_update, load_update
from tests.model.test_weights import assert_same, change_config, change_weights
from tests.other_weights import other_weights
from tests.tiny import ALL_NAMES, EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, LLADA2_NAME

FIRST = GOLDEN / GOLDEN_NAMES[0]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
Change = Callable[[dict[str, Tensor]], object]


def copied(folder: Path, name: str = GOLDEN_NAMES[0], change: Change | None = None) -> Path:
    shutil.copytree(GOLDEN / name, folder)
    if change is not None:
        change_weights(folder, change)
    return folder


def zeroed(*parts: str) -> Change:
    """A change that makes the weights with one of these parts in their names zero."""

    def change(weights: dict[str, Tensor]) -> None:
        names = [name for name in weights if any(part in name for part in parts)]
        weights |= {name: torch.zeros_like(weights[name]) for name in names}

    return change


# --- zeros -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part", "first"),
    [
        (GOLDEN_NAMES[0], "", HEAD),
        (GOLDEN_NAMES[0], "embed_tokens", EMBEDDING),
        (GOLDEN_NAMES[0], "model.norm", "model.norm.weight"),
        (GOLDEN_NAMES[0], "layers.1.self_attn.k_proj", "model.layers.1.self_attn.k_proj.weight"),
        (GOLDEN_NAMES[0], "layers.1.self_attn.q_norm", "model.layers.1.self_attn.q_norm.weight"),
        (GOLDEN_NAMES[0], "mrp_modules.0.model.eh_proj", "mrp_modules.0.model.eh_proj.weight"),
        (EXPERTS_NAME, "layers.1.mlp.experts", "model.layers.1.mlp.experts.0.gate_proj.weight"),
        (EXPERTS_NAME, "layers.1.mlp.gate.", "model.layers.1.mlp.gate.weight"),
        (LLADA2_NAME, "word_embeddings", "model.word_embeddings.weight"),
    ],
)
def test_weights_of_zeros_are_refused_by_name(tmp_path: Path, name: str, part: str, first: str) -> None:
    options = LoadOptions(torch.float16, quantization="w8a8") if "k_proj" in part else LoadOptions()
    served, other = load_checkpoint(GOLDEN / name, options), copied(tmp_path / "a", name, zeroed(part))
    with pytest.raises(CheckpointError, match=r"zero throughout: .*, as in a save without numbers") as loading:
        load_checkpoint(other, options)
    with pytest.raises(CheckpointError, match="zero throughout: ") as updating:
        check_update([str(other)], served.config, options)
    for refused in (loading, updating):
        assert f"'{first}'" in refused.value.message or " more, as" in refused.value.message


def test_numbers_that_are_zero_in_the_served_type_are_zeros(tmp_path: Path) -> None:
    folder = copied(tmp_path / "a", change=lambda w: w.update({HEAD: torch.full_like(w[HEAD].float(), 1e-9)}))
    load_checkpoint(folder)
    with pytest.raises(CheckpointError, match=f"zero throughout: '{HEAD}'"):
        load_checkpoint(folder, LoadOptions(torch.float16))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (GOLDEN_NAMES[0], ("o_proj", "down_proj")),  # layers that were just added, and MRP's
        (EXPERTS_NAME, ("layers.1.mlp.experts.3.",)),  # pruned
        (LLADA2_NAME, ("attention.dense",)),
    ],
)
def test_zeros_that_may_be_right_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, parts: tuple[str, ...]
) -> None:
    served, other = load_checkpoint(GOLDEN / name), copied(tmp_path / "a", name, zeroed(*parts))
    for act in (lambda: load_checkpoint(other), lambda: check_update([str(other)], served.config, LoadOptions())):
        caplog.clear()
        act()
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert "zero throughout: " in record.getMessage()
        assert parts[-1] in record.getMessage()


def test_zeros_of_biases_and_of_a_part_of_a_weight_are_usual(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def change(weights: dict[str, Tensor]) -> None:
        zeroed("bias")(weights)
        for name in (HEAD, "model.layers.0.self_attn.q_proj.weight"):  # a pruned head, and rows of padding
            if name in weights:
                weights[name][: len(weights[name]) // 2] = 0

    for name in ("fast-dllm-random-f", GOLDEN_NAMES[0], LLADA2_NAME):
        folder = copied(tmp_path / name, name, change)
        load_checkpoint(folder)
        load_checkpoint(folder, LoadOptions(shard=Shard(0, 2)))
    assert not caplog.records


def test_a_weight_that_is_not_finite_is_refused_in_8_bits_too(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    folder = copied(tmp_path / "a", change=lambda w: w[name].view(-1)[3:4].fill_(float("nan")))
    with pytest.raises(CheckpointError, match=f"'{name}' has numbers that are not finite"):
        load_checkpoint(folder, LoadOptions(quantization="w8a8"))


# --- a head beside a tied flag ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_head_beside_a_tied_flag_is_used_if_it_differs(tmp_path: Path, name: str) -> None:
    """As in transformers 5. An equal head, or none, is tied."""
    config = parse_config(read_config(GOLDEN / name))
    [[part]] = FAMILIES[config.family].weight_mappings(config, "embed_tokens.weight")
    heads: list[Change] = [
        lambda w: w.update({HEAD: w[part.name].flip(0).clone()}),
        lambda w: w.update({HEAD: w[part.name].clone()}),
        lambda w: w.pop(HEAD, None),
    ]
    for number, (change, is_own) in enumerate(zip(heads, (True, False, False), strict=True)):
        folder = copied(tmp_path / str(number), name, change)
        change_config(folder, tie_word_embeddings=True)
        loaded = load_checkpoint(folder)
        assert loaded.config.tie_word_embeddings is not is_own
        assert (loaded.backbone.head is loaded.backbone.embed_tokens.weight) is not is_own
        weights = load_file(folder / "model.safetensors")
        assert torch.equal(loaded.backbone.head, weights.get(HEAD, weights[part.name]).float())


def test_a_head_that_differs_by_the_rounding_of_the_served_type_is_tied(tmp_path: Path) -> None:
    def change(weights: dict[str, Tensor]) -> None:
        weights[HEAD] = weights[EMBEDDING].float() * (1 + 1e-5)
        weights[EMBEDDING] = weights[HEAD].bfloat16()

    folder = copied(tmp_path / "a", change=change)
    change_config(folder, tie_word_embeddings=True)
    assert load_checkpoint(folder, LoadOptions(torch.bfloat16)).config.tie_word_embeddings
    assert not load_checkpoint(folder).config.tie_word_embeddings


def test_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = copied(tmp_path / "a", change=lambda w: w.update({HEAD: w[HEAD][:-1].clone()}))
    change_config(folder, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=f"'{HEAD}' has shape"):
        load_checkpoint(folder)


def test_an_update_of_a_head_of_its_own_beside_the_flag(tmp_path: Path) -> None:
    """A trainer's folders have the flag of its config.json, and the head."""
    folder = copied(tmp_path / "a")
    change_config(folder, tie_word_embeddings=True)
    served, other = load_checkpoint(folder), other_weights(tmp_path / "b", folder)
    check_update([str(other)], served.config, LoadOptions())
    apply_update(served, load_update([other], served.config, LoadOptions()))
    assert_same(served, load_checkpoint(other))


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_an_update_of_a_tied_head_must_be_the_embedding(tmp_path: Path, partial: bool, equal: bool) -> None:
    def tied(weights: dict[str, Tensor]) -> None:
        weights[HEAD] = weights[EMBEDDING].clone()

    folder = copied(tmp_path / "a", change=tied)
    change_config(folder, tie_word_embeddings=True)
    served, other = load_checkpoint(folder), other_weights(tmp_path / "b", folder)
    if equal:
        change_weights(other, tied)
    if partial:
        change_weights(other, lambda w: [w.pop(name) for name in list(w) if name not in (HEAD, EMBEDDING)])
    folders = (str(folder), str(other))
    if not equal:
        with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is not the embedding"):
            check_update(folders, served.config, LoadOptions(), partial=partial)
        return
    check_update(folders, served.config, LoadOptions(), partial=partial)
    apply_update(served, load_update(folders, served.config, LoadOptions(), newest_only=partial))
    assert torch.equal(served.backbone.head, load_file(other / "model.safetensors")[EMBEDDING].float())


def test_an_update_of_the_embedding_alone_changes_a_tied_head(tmp_path: Path) -> None:
    """The start's folder has a head, which is older than the new embedding and does not count."""
    folder = copied(tmp_path / "a", change=lambda w: w.update({HEAD: w[EMBEDDING].clone()}))
    change_config(folder, tie_word_embeddings=True)
    served, other = load_checkpoint(folder), other_weights(tmp_path / "b", folder)
    change_weights(other, lambda w: [w.pop(name) for name in list(w) if name != EMBEDDING])
    folders = (str(folder), str(other))
    check_update(folders, served.config, LoadOptions(), partial=True)
    for newest_only in (True, False):
        apply_update(served, load_update(folders, served.config, LoadOptions(), newest_only=newest_only))
        assert torch.equal(served.backbone.head, load_file(other / "model.safetensors")[EMBEDDING].float())


# --- end tokens of an update, and tables -----------------------------------------------------------


def test_an_update_may_leave_out_the_files_that_name_end_tokens(tmp_path: Path) -> None:
    folder = copied(tmp_path / "a")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7]}))
    served, other = load_checkpoint(folder), other_weights(tmp_path / "b")
    assert served.config.eos_token_ids == (510, 7)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).unlink()
    check_update([str(other)], served.config, LoadOptions())
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": [8]}))
    with pytest.raises(CheckpointError, match=r"eos_token_ids is \(510, 8\), that of the served weights is \(510, 7\)"):
        check_update([str(other)], served.config, LoadOptions())


TABLES = [
    "model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.original_inv_freq",
    "module.model.layers.1.self_attn.rotary_emb.cos_cached", "model.layers.1.self_attn.rotary_emb.sin_cached",
    "mrp_modules.0.model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0.self_attn.masked_bias",
    "model.layers.0.attention.bias", "model.position_ids", "base_model.model.model.rotary_emb.cos_sin_cache",
]  # fmt: skip


def test_tables_that_libraries_save_are_left_out(tmp_path: Path) -> None:
    """As in transformers and vLLM. They may be infinite or zero."""
    tables = {name: torch.full((4,), float("-inf")) for name in TABLES}
    folder = copied(tmp_path / "a", change=lambda w: w.update(tables))
    served = load_checkpoint(folder)
    assert_same(served, load_checkpoint(FIRST))
    check_update([str(folder)], served.config, LoadOptions())


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias", "model.layers.7.mlp.up_proj.weight", "model.layers.0.rotary.weight",
        "mrp_modules.1.model.norm.weight", "model.layers.0.mlp.experts.0.up_proj.weight", "model.inv_freq_proj.weight",
        "lm_head.bias", "model.norm.bias", "model.position_ids.weight",
    ],
)  # fmt: skip
def test_a_weight_that_nothing_reads_is_refused(tmp_path: Path, name: str) -> None:
    folder = copied(tmp_path / "a", change=lambda w: w.update({name: torch.ones(4)}))
    with pytest.raises(CheckpointError, match="weights are not used"):
        load_checkpoint(folder)


def test_weights_of_a_save_with_an_empty_shard_are_refused(tmp_path: Path) -> None:
    folder = copied(tmp_path / "a")
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        number = 0 if "2" in file else 1
        save_file({name: weights[name] * number for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"zero throughout: .* and \d+ more, as in a save without numbers"):
        load_checkpoint(folder)
