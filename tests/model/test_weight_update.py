"""Other weights in the place of loaded ones: the same numbers as a fresh load, in the same tensors; and refusals."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.errors import CheckpointError
from service.model import Checkpoint, LoadOptions, load_checkpoint, save_checkpoint
from service.model.weight_update import apply_update, check_update, load_update
from service.model.weights import WeightFiles
from tests.model.test_weights import change_config, change_weights, state
from tests.other_weights import FIRST, other_weights
from tests.tiny import EXPERTS_NAME, GOLDEN, tiny_checkpoint


def updated(served: Checkpoint, other: Path, options: LoadOptions) -> None:
    check_update([str(other)], served.config, options)
    apply_update(served, load_update([other], served.config, options))


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (FIRST, LoadOptions()),
        (FIRST, LoadOptions(torch.bfloat16, mrp_scale=2.0)),
        (FIRST, LoadOptions(quantization="w8a8")),
        (FIRST, LoadOptions(quantization="fp8")),
        (GOLDEN / EXPERTS_NAME, LoadOptions()),
    ],
    ids=["float32", "bfloat16", "w8a8", "fp8", "experts"],
)
def test_the_numbers_are_those_of_a_fresh_load_in_the_same_tensors(
    tmp_path: Path, source: Path, options: LoadOptions
) -> None:
    served, other = load_checkpoint(source, options), other_weights(tmp_path / "other", source)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in state(served).items()}
    updated(served, other, options)
    wanted = state(load_checkpoint(other, options))
    assert wanted.keys() == before.keys()
    for name, tensor in state(served).items():
        address, old = before[name]
        assert tensor.data_ptr() == address, name
        assert torch.equal(tensor, wanted[name]), name
        assert not torch.equal(tensor, old), name


def test_a_shared_matrix_stays_shared(tmp_path: Path) -> None:
    for seed in (1, 2):
        checkpoint = tiny_checkpoint(seed, torch.float32, tie_word_embeddings=True)
        save_checkpoint(tmp_path / str(seed), checkpoint.raw, checkpoint.backbone, checkpoint.mrp)
    served = load_checkpoint(tmp_path / "1")
    updated(served, tmp_path / "2", LoadOptions())
    assert served.backbone.head.data_ptr() == served.backbone.embed_tokens.weight.data_ptr()
    assert torch.equal(served.backbone.head, load_checkpoint(tmp_path / "2").backbone.head)


def reshaped(weights: dict[str, Tensor]) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name][:, :-1].contiguous()


def without_mrp(folder: Path) -> None:
    kept_weights(folder, backbone_alone)
    change_config(folder, num_mrp_heads=0, num_nextn_predict_layers=0)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: change_weights(folder, reshaped), r"model\.layers\.1\.mlp\.down_proj\.weight' has shape"),
        (lambda folder: change_weights(folder, lambda w: w.pop("lm_head.weight")), "'lm_head.weight' is missing"),
        (lambda folder: change_weights(folder, lambda w: w.update(more=torch.zeros(1))), "not used, first: more"),
        (lambda folder: change_config(folder, rope_theta=5.0), r"rope_theta is 5\.0, that of the served weights is"),
        (
            lambda folder: change_config(folder, eos_token_id=3),
            r"eos_token_ids is \(3, 510\), that of the served weights",
        ),
        (without_mrp, r"weight 'mrp_modules\.0\.model\.\S+' is missing"),
    ],
)
def test_a_checkpoint_that_differs_is_refused(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    served, other = load_checkpoint(FIRST), other_weights(tmp_path / "other")
    spoil(other)
    with pytest.raises(CheckpointError, match=message):
        check_update([str(other)], served.config, LoadOptions())


def test_an_mrp_that_the_served_weights_lack_is_refused(tmp_path: Path) -> None:
    bare = other_weights(tmp_path / "bare")
    without_mrp(bare)
    served = load_checkpoint(bare)
    assert served.mrp is None
    with pytest.raises(CheckpointError, match="it has mrp, the served weights have none"):
        check_update([str(FIRST)], served.config, LoadOptions())


NUMBERS = [
    (float("nan"), torch.float32, True), (float("inf"), torch.float32, True), (float("-inf"), torch.bfloat16, True),
    (1e30, torch.bfloat16, False), (1e30, torch.float16, True), (70000.0, torch.float16, True),
    (60000.0, torch.float16, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "dtype", "refused", "name"),
    [
        *((*case, "model.layers.1.mlp.down_proj.weight") for case in NUMBERS),
        *((*NUMBERS[0], name) for name in ("lm_head.weight", "mrp_modules.0.model.norm.weight")),
    ],
)
def test_a_number_that_is_not_finite_in_the_served_type_is_refused(
    tmp_path: Path, name: str, number: float, dtype: torch.dtype, refused: bool
) -> None:
    served, other = load_checkpoint(FIRST), other_weights(tmp_path / "other")

    def spoil(weights: dict[str, Tensor]) -> None:
        weights[name] = weights[name].float()
        weights[name].view(-1)[-1] = number

    change_weights(other, spoil)
    with (
        pytest.raises(CheckpointError, match=rf"'{name}' has numbers that are not finite") if refused else nullcontext()
    ):
        check_update([str(other)], served.config, LoadOptions(dtype))


def test_only_the_newest_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, other = load_checkpoint(FIRST), tmp_path / "part"
    other.mkdir()
    head = load_file(FIRST / "model.safetensors")["lm_head.weight"]
    save_file({"lm_head.weight": head}, other / "model.safetensors")
    seen, read = list[str](), WeightFiles.read

    def reading(files: WeightFiles, name: str) -> Tensor:
        weight = read(files, name)
        seen.extend([] if weight.is_meta else [name])
        return weight

    monkeypatch.setattr(WeightFiles, "read", reading)
    check_update([str(FIRST), str(other)], served.config, LoadOptions(), partial=True)
    assert seen == ["lm_head.weight"]


# --- some of the weights ---------------------------------------------------------------------------


def kept_weights(folder: Path, keep: Callable[[str], bool]) -> Path:
    """The folder with these of its weights."""
    change_weights(folder, lambda weights: [weights.pop(name) for name in list(weights) if not keep(name)])
    return folder


def expected_state(first: Path, *updates: Path, options: LoadOptions, tmp_path: Path) -> dict[str, Tensor]:
    """The tensors of a fresh load of one folder that has the last weight of each name."""
    weights = load_file(first / "model.safetensors")
    for other in updates:
        weights |= load_file(other / "model.safetensors")
    folder = other_weights(tmp_path / "joined", first)
    save_file(weights, folder / "model.safetensors")
    return state(load_checkpoint(folder, options))


def one_matrix(name: str) -> bool:
    return name == "model.layers.1.self_attn.k_proj.weight"


OPTIONS = [LoadOptions(), LoadOptions(torch.bfloat16), LoadOptions(quantization="w8a8")]


def backbone_alone(name: str) -> bool:
    return not name.startswith("mrp")


def mrp_alone(name: str) -> bool:
    return name.startswith("mrp")


@pytest.mark.parametrize(
    ("options", "newest_only"), [*((options, True) for options in OPTIONS), (LoadOptions(), False)]
)
@pytest.mark.parametrize("keep", [backbone_alone, mrp_alone, one_matrix])
def test_some_weights_leave_the_others_as_they_are(
    tmp_path: Path, options: LoadOptions, newest_only: bool, keep: Callable[[str], bool]
) -> None:
    """A part of a fused parameter, too. Such a folder needs no config.json. A backbone's may tell of MRP or not."""
    some, is_partial = kept_weights(other_weights(tmp_path / "some"), keep), keep is not backbone_alone
    served, folders = load_checkpoint(FIRST, options), (str(FIRST), str(some))
    for change in ((some / "config.json").unlink,) if is_partial else (lambda: None, partial(without_mrp, some)):
        change()
        assert check_update(folders, served.config, options, partial=is_partial) == (folders, keep is mrp_alone)
    apply_update(served, load_update(folders, served.config, options, newest_only=newest_only))
    expected = expected_state(FIRST, some, options=options, tmp_path=tmp_path)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state(served).items())


def test_folders_that_nothing_comes_from_are_left_out(tmp_path: Path) -> None:
    served = load_checkpoint(FIRST)
    first, second = (kept_weights(other_weights(tmp_path / name), backbone_alone) for name in "ab")
    folders = (str(FIRST), str(first), str(second))
    assert check_update(folders, served.config, LoadOptions()).folders == (str(FIRST), str(second))
    whole = other_weights(tmp_path / "c")
    assert check_update((*folders, str(whole)), served.config, LoadOptions()) == ((str(whole),), True)


@pytest.mark.parametrize(
    ("spoil", "is_partial", "message"),
    [
        (lambda folder: kept_weights(folder, one_matrix), False, "is missing"),
        (lambda folder: change_weights(folder, lambda w: w.update(more=torch.zeros(1))), True, "not used, first: more"),
        (lambda folder: change_weights(folder, reshaped), True, "has shape"),
        (lambda folder: kept_weights(folder, lambda _: False), True, "its files have no weights"),
        (lambda folder: change_config(folder, rope_theta=5.0), True, r"rope_theta is 5\.0"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], is_partial: bool, message: str
) -> None:
    """Without `partial`, a backbone that lacks a weight is not taken for a part."""
    served, other = load_checkpoint(FIRST), other_weights(tmp_path / "other")
    spoil(other)
    with pytest.raises(CheckpointError, match=message):
        check_update((str(FIRST), str(other)), served.config, LoadOptions(), partial=is_partial)
