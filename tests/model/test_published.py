"""Published checkpoints with 8-bit matrices: files in each format, written here, are the numbers that they mean."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from service.errors import CheckpointError, SettingsError
from service.model import Checkpoint, LoadOptions, load_checkpoint, parse_config
from service.model.checkpoint import weight_bytes
from service.model.config import Shard
from service.model.quantization.layers import QuantizedExperts, QuantizedLinear
from service.model.quantization.prequantized import dequantized
from service.model.quantization.schemes import QUANT_SCHEMES, published_scheme
from service.model.weight_update import check_update
from service.model.weights import WeightFiles
from tests.model.test_weights import change_config, change_weights
from tests.tiny import EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, tiny_config

TOKEN = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}


def compressed(file_format: str, weights: dict[str, Any], activations: str | None = None) -> dict[str, Any]:
    """As llm-compressor writes it."""
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "symmetric": True, "dynamic": False, "group_size": None, "actorder": None} | weights,
        "input_activations": activations and TOKEN | {"type": activations},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": file_format, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed",
    }  # fmt: skip


QWEN = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [48, 40]}
CHANNEL, GROUP = {"type": "int", "strategy": "channel"}, {"type": "int", "strategy": "group", "group_size": 16}
#: by name: the config, the block that shares a scale, and our scheme; None: layers are widened
FORMATS: dict[str, tuple[dict[str, Any], tuple[int | None, int | None], str | None]] = {
    "w8a16 packed": (compressed("pack-quantized", CHANNEL), (1, None), None),
    "w8a16 packed, groups": (compressed("pack-quantized", GROUP), (1, 16), None),
    "w8a8": (compressed("int-quantized", CHANNEL, "int"), (1, None), "w8a8"),
    "fp8 a row": (compressed("float-quantized", CHANNEL | {"type": "float"}, "float"), (1, None), "fp8"),
    "fp8 a matrix": (compressed("naive-quantized", {"type": "float", "strategy": "tensor"}), (None, None), "fp8"),
    "fp8 of Qwen3": (QWEN, (48, 40), "fp8"),
}
EVERY_FORMAT = pytest.mark.parametrize("name", FORMATS)


def kept_in_8_bits(
    weight: Tensor, block: tuple[int | None, int | None], scheme: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """8-bit numbers, a scale for each block, and the matrix that they mean."""
    height, depth = block[0] or weight.shape[0], block[1] or weight.shape[1]
    rows, columns = torch.arange(weight.shape[0]) // height, torch.arange(weight.shape[1]) // depth
    across = int(columns[-1]) + 1
    groups = (rows[:, None] * across + columns).flatten()
    peaks = torch.zeros((int(rows[-1]) + 1) * across).scatter_reduce(0, groups, weight.abs().flatten(), "amax")
    scales = peaks.unflatten(0, (-1, across)) / (448 if scheme == "fp8" else 127)
    whole = scales[rows][:, columns]
    shares = weight / whole
    numbers = shares.to(torch.float8_e4m3fn) if scheme == "fp8" else shares.round().to(torch.int8)
    return numbers, scales, numbers.float() * whole


def packed(numbers: Tensor) -> Tensor:
    """int8 `[N, K]` -> int32 `[N, K / 4]`, the first of four in the lowest bits, 128 added."""
    fours = F.pad(numbers.long() + 128, (0, -numbers.shape[1] % 4)).unflatten(1, (-1, 4))
    words = sum(fours[..., index] << 8 * index for index in range(4))
    return words.to(torch.int32)


def publish(folder: Path, source: str, name: str, wide: tuple[str, ...] = ("lm_head",)) -> tuple[Path, Path]:
    """A golden checkpoint's matrices in a format, and beside it a wide checkpoint of the same numbers."""
    config, block, scheme = FORMATS[name]
    small, meant = (Path(shutil.copytree(GOLDEN / source, folder / kind)) for kind in ("small", "meant"))
    files, numbers = dict[str, Tensor](), dict[str, Tensor]()
    for key, weight in load_file(small / "model.safetensors").items():
        if (not key.endswith("_proj.weight") and key != "lm_head.weight") or any(part in key for part in wide):
            files[key] = numbers[key] = weight
            continue
        bits, scales, numbers[key] = kept_in_8_bits(weight, block, scheme)
        files[f"{key}_scale_inv" if config is QWEN else f"{key}_scale"] = scales
        if config.get("format") == "pack-quantized":
            files |= {f"{key}_packed": packed(bits), f"{key}_shape": torch.tensor(weight.shape)}
        else:
            files[key] = bits
    save_file(files, small / "model.safetensors")
    save_file(numbers, meant / "model.safetensors")
    change_config(small, quantization_config=config)
    return small, meant


def matrices(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every weight of a checkpoint, wide."""
    weights = dict[str, Tensor]()
    for network in checkpoint.networks:
        kind = type(network).__name__
        weights |= {f"{kind}.{name}".removesuffix(".weight"): weight for name, weight in network.named_parameters()}
        weights |= {f"{kind}.{name}": layer.weight for name, layer in small_layers(network).items()}
    return weights


def small_layers(network: nn.Module) -> Mapping[str, QuantizedLinear | QuantizedExperts]:
    kinds = (QuantizedLinear, QuantizedExperts)
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, kinds)}


@EVERY_FORMAT
@pytest.mark.parametrize("source", [GOLDEN_NAMES[0], EXPERTS_NAME])
def test_a_format_is_the_numbers_that_it_means(tmp_path: Path, source: str, name: str) -> None:
    small, meant = (load_checkpoint(folder) for folder in publish(tmp_path, source, name))
    ours, theirs = matrices(small), matrices(meant)
    assert ours.keys() == theirs.keys()
    for key, weight in theirs.items():
        torch.testing.assert_close(ours[key], weight, rtol=1e-6, atol=0)
    assert small.config.quantization == FORMATS[name][2]
    tensors = [tensor for network in small.networks for tensor in network.parameters()]
    layers = [layer for network in small.networks for layer in small_layers(network).values()]
    tensors += [tensor for layer in layers for tensor in layer.buffers()]
    assert sum(tensor.nbytes for tensor in tensors) == weight_bytes(small.config, small.dtype)
    assert not small.wide_layers


@pytest.mark.parametrize("name", ["w8a16 packed, groups", "w8a8", "fp8 of Qwen3"])
@pytest.mark.parametrize("source", [GOLDEN_NAMES[0], EXPERTS_NAME])
def test_ranks_divide_published_matrices(tmp_path: Path, source: str, name: str) -> None:
    """A part of the columns may end within a group of them."""
    small, meant = publish(tmp_path, source, name)
    for rank in (0, 1):
        options = LoadOptions(shard=Shard(rank, 2))
        theirs = matrices(load_checkpoint(meant, options))
        for key, weight in matrices(load_checkpoint(small, options)).items():
            torch.testing.assert_close(weight, theirs[key], rtol=1e-6, atol=0)


def test_wide_matrices_of_files_stay_wide_and_the_output_head_is_widened(tmp_path: Path) -> None:
    small, meant = publish(
        tmp_path, GOLDEN_NAMES[0], "fp8 of Qwen3", wide=("layers.0.mlp", "layers.1.self_attn.q_proj")
    )
    checkpoint, theirs = load_checkpoint(small), matrices(load_checkpoint(meant))
    layers = checkpoint.backbone.layers
    assert isinstance(layers[0].mlp.down_proj, nn.Linear)
    assert isinstance(layers[1].self_attn.qkv_proj, nn.Linear)  # one of its three parts is wide
    assert isinstance(layers[0].self_attn.qkv_proj, QuantizedLinear)
    for key, weight in matrices(checkpoint).items():
        torch.testing.assert_close(weight, theirs[key], rtol=1e-6, atol=0)
    assert {parameter.partition(".")[2] for parameter in checkpoint.wide_layers} == {
        "layers.0.mlp.gate_up_proj.weight",
        "layers.0.mlp.down_proj.weight",
        "layers.1.self_attn.qkv_proj.weight",
    }
    assert weight_bytes(checkpoint.config, checkpoint.dtype, checkpoint.wide_layers) > weight_bytes(
        checkpoint.config, checkpoint.dtype
    )


@pytest.mark.parametrize("scheme", QUANT_SCHEMES)
@pytest.mark.parametrize("shard", [Shard(), Shard(1, 2)], ids=str)
def test_matrices_of_which_the_files_have_the_weights_alone_in_8_bits_are_as_wide_ones(
    tmp_path: Path, scheme: str, shard: Shard
) -> None:
    """So any scheme can be asked for."""
    options = LoadOptions(quantization=scheme, shard=shard)
    small, meant = (load_checkpoint(each, options) for each in publish(tmp_path, GOLDEN_NAMES[0], "w8a16 packed"))
    assert small.config.quantization == scheme
    theirs = matrices(meant)
    assert all(torch.equal(weight, theirs[key]) for key, weight in matrices(small).items())
    assert not small.wide_layers


def test_another_form_cannot_be_asked_for(tmp_path: Path) -> None:
    small, _ = publish(tmp_path, GOLDEN_NAMES[0], "w8a8")
    assert load_checkpoint(small, LoadOptions(quantization="w8a8")).config.quantization == "w8a8"
    with pytest.raises(SettingsError, match="'fp8', but this checkpoint's files have 8-bit matrices") as caught:
        load_checkpoint(small, LoadOptions(quantization="fp8"))
    assert caught.value.param == "quantization"


def test_they_cannot_take_the_place_of_served_weights(tmp_path: Path) -> None:
    small, meant = publish(tmp_path, GOLDEN_NAMES[0], "w8a8")
    with pytest.raises(CheckpointError, match="published in 8 bits; only wide weights can be updated"):
        check_update([str(small)], load_checkpoint(meant).config, LoadOptions())


def test_the_same_files_can_be_read_wide(tmp_path: Path) -> None:
    small, meant = publish(tmp_path, GOLDEN_NAMES[0], "fp8 of Qwen3")
    raw, source = dequantized(json.loads((small / "config.json").read_text()), WeightFiles(small))
    assert "quantization_config" not in raw
    theirs = load_file(meant / "model.safetensors")
    assert set(source.names) == theirs.keys()
    for key, weight in theirs.items():
        torch.testing.assert_close(source.read(key), weight, rtol=1e-6, atol=0)


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("w8a8", {f"{Q}_scale": torch.ones(3, 1)}, r"_scale' has shape \[3, 1\], config.json implies \[64, 1\]"),
        ("w8a8", {Q: torch.ones(64, 64)}, "is torch.float32 of shape .*, expected is a matrix of int8"),
        ("w8a8", {Q: torch.ones(64, 32, dtype=torch.int8)}, r"has shape \[64, 32\], config.json implies \[64, 64\]"),
        ("w8a8", {f"{Q}_scale": None}, "is torch.int8, which is no wide weight"),
        ("w8a8", {Q: None}, f"weight {Q!r} is missing"),
        ("w8a8", {f"{Q}_zero_point": torch.ones(1)}, "1 weights are not used"),
        ("w8a16 packed", {f"{Q}_packed": torch.ones(64, 3, dtype=torch.int32)}, r"_packed' has shape \[64, 3\]"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    small, _ = publish(tmp_path, GOLDEN_NAMES[0], name)
    change_weights(small, lambda weights: [weights.pop(key, None) for key in change])
    change_weights(small, lambda weights: weights.update({key: new for key, new in change.items() if new is not None}))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(small)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptq", "bits": 8}, "quant_method is 'gptq'"),
        (QWEN | {"activation_scheme": "static"}, "activation_scheme is 'static'"),
        (QWEN | {"weight_block_size": [128]}, r"the block of a scale is \[128\]"),
        (compressed("nvfp4-pack-quantized", CHANNEL), "format is 'nvfp4-pack-quantized'"),
        (compressed("pack-quantized", CHANNEL | {"num_bits": 4}), "'num_bits': 4"),
        (compressed("int-quantized", GROUP, "int"), "input_activations are"),
        (compressed("int-quantized", CHANNEL) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
        (compressed("int-quantized", CHANNEL) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity"),
    ],
)
def test_other_formats_are_refused_with_those_that_are_read(config: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        parse_config(tiny_config(quantization_config=config))
    assert "read are compressed-tensors of 8 bits, symmetric" in caught.value.message


STRANGE = (None, True, -1, 0, 10**400, 3.0, float("nan"), "x", [], [3], ["x"], [[3]], {}, {"a": 1}, {"a": "x"})
GROUPED = compressed("int-quantized", GROUP | {"dynamic": False, "actorder": None}, "int")
GROUPED |= {"sparsity_config": {"format": "dense"}, "transform_config": None}


def paths_in(value: Any, start: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield start
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield from paths_in(value[key], (*start, key))


def replaced(whole: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    copy = dict(whole) if isinstance(whole, dict) else list(whole)
    copy[path[0]] = replaced(whole[path[0]], path[1:], value)
    return copy


NOT_SUPPORTED = "config.json: quantization_config is not supported: "


def refusal(config: Any) -> str | None:
    try:
        parse_config(tiny_config(quantization_config=config))
    except CheckpointError as error:
        return error.message
    return None


@pytest.mark.parametrize("config", [QWEN, GROUPED, compressed("float-quantized", CHANNEL | {"strategy": "block"})])
def test_any_value_of_any_part_is_taken_or_refused_in_one_line(config: dict[str, Any]) -> None:
    for path in paths_in(config):
        for value in STRANGE:
            message = refusal(replaced(config, path, value))
            assert message is None or (message.startswith(NOT_SUPPORTED) and "\n" not in message), (path, value)


@pytest.mark.parametrize(
    ("name", "suffix", "message"),
    [
        ("w8a8", "", f"zero throughout: {Q!r}"),
        ("w8a8", "_scale", f"zero throughout: '{Q}_scale'"),
        ("fp8 of Qwen3", "", f"zero throughout: {Q!r}"),
        ("w8a16 packed", "_packed", f"zero throughout: '{Q}_packed'"),
        ("fp8 a row", "_scale", f"'{Q}_scale' has numbers that are not finite"),
    ],
)
def test_numbers_in_8_bits_that_cannot_be_right_are_refused(
    tmp_path: Path, name: str, suffix: str, message: str
) -> None:
    small, _ = publish(tmp_path, GOLDEN_NAMES[0], name)
    key, number = f"{Q}{suffix}", float("nan") if "finite" in message else 0

    def change(weights: dict[str, Tensor]) -> None:
        kind = weights[key].dtype
        weights[key] = torch.full_like(weights[key].float(), number).to(kind)

    change_weights(small, change)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(small)


def test_a_head_in_8_bits_beside_a_tied_flag_is_used(tmp_path: Path) -> None:
    small, meant = publish(tmp_path, GOLDEN_NAMES[0], "fp8 of Qwen3", wide=())
    for folder in (small, meant):
        change_config(folder, tie_word_embeddings=True)
    checkpoints = [load_checkpoint(folder) for folder in (small, meant)]
    assert not any(checkpoint.config.tie_word_embeddings for checkpoint in checkpoints)
    torch.testing.assert_close(*(checkpoint.backbone.head for checkpoint in checkpoints), rtol=1e-6, atol=0)


def test_blocks_may_be_named_as_older_files_do() -> None:
    weights = {"type": "float", "strategy": "block", "block_structure": "128x64"}
    scheme = published_scheme({"quantization_config": compressed("float-quantized", weights, "float")})
    assert scheme is not None
    assert (scheme.rows, scheme.columns) == (128, 64)
    assert published_scheme({"quantization_config": None}) is None
