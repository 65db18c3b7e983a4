"""config.json: the values that are read, and the errors of wrong ones."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from service.errors import CheckpointError
from service.model import MrpConfig, parse_config
from service.model.config import ExpertsConfig
from service.model.families import unknown_keys
from service.model.files import read_config, resolve
from service.model.weights import empty_networks
from tests.tiny import DIFFCODER, EXPERTS, FAST_DLLM, I_DLM, LLADA2, tiny_config


def test_the_published_keys() -> None:
    config = parse_config(tiny_config())
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (64, 32, 48)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert (config.block_size, config.mask_token_id, config.eos_token_ids) == (4, 60, (61,))
    assert (config.max_positions, config.rope_theta, config.rms_norm_eps) == (256, 10000.0, 1e-6)
    assert not config.tie_word_embeddings
    assert config.mrp == MrpConfig(num_layers=1, residual=True, scale=1.0, default_steps=2)
    assert config.num_kv_layers == 3


def test_optional_keys_have_defaults() -> None:
    optional = dict.fromkeys(
        [
            "num_key_value_heads", "head_dim", "block_size", "eos_token_id", "max_position_embeddings", "rope_theta",
            "rms_norm_eps", "tie_word_embeddings", "hidden_act", "num_mrp_heads", "num_nextn_predict_layers",
        ]
    )  # fmt: skip
    config = parse_config(tiny_config(**optional))
    assert (config.num_kv_heads, config.head_dim, config.block_size) == (4, 8, 4)
    assert (config.eos_token_ids, config.max_positions, config.rope_theta) == ((), 32768, 10000.0)
    assert config.mrp is None
    assert config.num_kv_layers == 2


LARGE = {"vocab_size": 151936}


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        (LARGE | {"mask_token_id": None}, "mask_token_id", 151669),  # the published one
        (LARGE | {"eos_token_id": None}, "eos_token_ids", ()),
        (LARGE | {"eos_token_id": 5}, "eos_token_ids", (5,)),
        (LARGE | {"eos_token_id": [151643, 151645]}, "eos_token_ids", (151643, 151645)),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta", 5e5),
        ({"mrp_residual": False, "mrp_scale": 2.0, "mrp_default_steps": 3}, "mrp", MrpConfig(1, False, 2.0, 3)),
        ({"block_size": 1}, "mrp", MrpConfig(1, default_steps=1)),
        ({"num_nextn_predict_layers": 0}, "mrp", None),
        ({"num_mrp_heads": 0}, "mrp", None),
    ],
)
def test_a_key_becomes_a_field(changes: dict[str, Any], field: str, value: object) -> None:
    assert getattr(parse_config(tiny_config(**changes)), field) == value


def test_the_operator_overrides_the_block_size() -> None:
    assert parse_config(tiny_config(), block_size=16).block_size == 16


def test_stable_diffcoder_is_told_by_its_architecture() -> None:
    """config.json says `llama`, and has neither a block size nor a mask token."""
    left_out = dict.fromkeys(["block_size", "mask_token_id"])
    config = parse_config(tiny_config(**DIFFCODER, **left_out))
    assert (config.family, config.block_size, config.mask_token_id) == ("stable_diffcoder", 4, 5)
    assert (config.qk_norm, parse_config(tiny_config()).qk_norm) == (False, True)
    assert config.rope_theta == 500000.0
    for changes in ({"attention_bias": True}, {"mlp_bias": True}, {"architectures": ["LlamaForCausalLM"]}):
        with pytest.raises(CheckpointError, match=r"not supported|model_type is 'llama'"):
            parse_config(tiny_config(**DIFFCODER | changes))


def test_fast_dllm_has_biases_and_shifted_outputs_in_sub_blocks() -> None:
    """config.json has the block size as `bd_size`, and neither sub-blocks nor a mask token."""
    published = {"bd_size": 32, "vocab_size": 151936} | dict.fromkeys(["small_block_size", "mask_token_id"])
    config = parse_config(tiny_config(**FAST_DLLM | published))
    assert (config.block_size, config.sub_block_size, config.mask_token_id) == (32, 8, 151665)
    assert (config.qkv_bias, config.qk_norm, config.shifted) == (True, False, True)
    assert not parse_config(tiny_config()).shifted
    assert parse_config(tiny_config(**FAST_DLLM), block_size=2).sub_block_size == 2
    assert parse_config(tiny_config(**FAST_DLLM | {"block_size": 16})).block_size == 16  # as `check --write` writes it
    with pytest.raises(CheckpointError, match="small_block_size is 3, expected a divisor of the block size 8"):
        parse_config(tiny_config(**FAST_DLLM | {"small_block_size": 3}))


@pytest.mark.parametrize(
    "key", ["hidden_size", "vocab_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"]
)
@pytest.mark.parametrize("value", [None, 0, -4, "32", 1.5, True])
def test_a_size_must_be_a_positive_integer(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} is {value!r}, expected a positive integer"):
        parse_config(tiny_config(**{key: value}))


@pytest.mark.parametrize(
    "key",
    [
        "num_key_value_heads", "head_dim", "block_size", "mask_token_id", "max_position_embeddings",
        "num_nextn_predict_layers", "num_mrp_heads", "mrp_default_steps",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["many", 1.5, [4]])
def test_an_optional_number_is_checked_too(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} is .*, expected an? (positive )?integer"):
        parse_config(tiny_config(**{key: value}))


def test_i_dlms_block_size_is_its_number_of_masks() -> None:
    config = parse_config(tiny_config(**I_DLM))
    assert (config.family, config.draft_masks, config.block_size, config.shifted) == ("i_dlm", 3, 8, True)
    assert parse_config(tiny_config(**I_DLM), block_size=16).block_size == 16
    assert parse_config(tiny_config(**I_DLM | {"model_type": "i_dlm", "use_regular_causal": None})) == config
    assert parse_config(tiny_config(**I_DLM | {"block_size": None})).draft_masks == 3
    assert not unknown_keys(tiny_config(**I_DLM))
    assert not parse_config(tiny_config(use_regular_causal=False)).causal


#: keys of look-alikes of SDAR; config.json of UNO's training code has them
CAUSAL = ("use_relay", "noise")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "4 attention heads are not a multiple of 3 key-value heads"),
        ({"mask_token_id": 64}, "mask_token_id 64 is outside the vocabulary of 64"),
        ({"block_size": 129}, "block size 129 is not supported: allowed are 1 to 128"),
        ({"head_dim": 15}, "head_dim is 15, expected an even number"),
        ({"num_experts": 8}, "model_type 'sdar' has no experts, 'sdar_moe' has"),
        (
            {"model_type": "llama"},
            "model_type is 'llama', supported are Fast_dLLM_Qwen, i_dlm, llada2_moe, sdar, sdar_moe",
        ),
        ({"attention_bias": True}, "attention_bias is true, which is not supported"),
        *[({key: True}, f"{key} is True: a causal model with shifted logits, as UNO is") for key in CAUSAL],
        ({"use_sliding_window": True}, "use_sliding_window is true, which is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu' is supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope type 'linear' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope type 'llama3' is not supported"),
        ({"num_mrp_heads": 2}, "num_mrp_heads is 2, only 1 is supported"),
        ({"mrp_default_steps": 5}, "mrp_default_steps is 5, allowed are 1 to 4"),
        ({"num_hidden_layers": 20000}, "num_hidden_layers is 20000, supported are up to 1024"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": True}, "rope_theta is True"),
        ({"rms_norm_eps": 1e30}, r"rms_norm_eps is 1e\+30, expected a positive number up to 1"),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 0}}, "rope_theta is 0, expected a positive number"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected an object"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0, expected a positive integer"),
        ({"max_position_embeddings": 2**60}, "max_position_embeddings is .*, supported are up to 4194304"),
        ({"hidden_size": 2**40}, "hidden_size is 1099511627776, supported are up to 1048576"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1, expected at least 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', expected true or false"),
        ({"torch_dtype": "float13"}, "torch_dtype is 'float13', known are auto, bfloat16"),
        ({"dtype": ["float32"]}, r"dtype is \['float32'\], known are"),
        ({"eos_token_id": -5}, "eos_token_id -5 is outside the vocabulary of 64"),
        ({"eos_token_id": True}, "eos_token_id is True, expected an integer"),
        ({"eos_token_id": [1, "2"]}, r"eos_token_id is \[1, '2'\], expected an integer or a list"),
        ({"eos_token_id": 60}, "mask_token_id is 60, which eos_token_id says is an end token"),
        ({"eos_token_id": [61, 60]}, "mask_token_id is 60, which eos_token_id says is an end token"),
        *(
            ({"mrp_scale": value}, "mrp_scale is .*, expected a finite number from -1000 to 1000 and not 0")
            for value in (1e300, -1e300, 0, 0.0, float("inf"), float("nan"), True, "2", [2], 10**400)
        ),
        (LLADA2 | {"routed_scaling_factor": 1e300}, "routed_scaling_factor is 1e\\+300, expected a finite number from"),
        (LLADA2 | {"routed_scaling_factor": 0}, "routed_scaling_factor is 0, expected a finite number from"),
        (LLADA2 | {"partial_rotary_factor": 10**400}, "partial_rotary_factor is 1000"),
        ({"max_position_embeddings": 3}, "max_position_embeddings is 3, less than a block of 4"),
        ({"rope_theta": 1e-300}, "rope_theta is 1e-300, expected a positive number above 1 up to 1e\\+15"),
        ({"rope_theta": 1e300}, "rope_theta is 1e\\+300, expected a positive number above 1 up to 1e\\+15"),
    ],
)
def test_a_value_that_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_config(tiny_config(**changes))


def experts_of(**changes: Any) -> ExpertsConfig:
    experts = parse_config(tiny_config(**(EXPERTS | changes))).experts
    assert experts is not None
    return experts


def test_the_published_keys_of_experts() -> None:
    config = parse_config(tiny_config(**EXPERTS))
    assert config.family == "sdar_moe"
    assert config.experts == ExpertsConfig(6, 2, 24, frozenset({1}), normalized=True)
    assert config.num_expert_layers == 1
    assert config.num_unused_parameters == 4 * 3 * 32 * 24
    assert parse_config(tiny_config()).num_unused_parameters == 0


def test_optional_keys_of_experts_have_defaults() -> None:
    optional = dict.fromkeys(["norm_topk_prob", "mlp_only_layers"])
    assert experts_of(**optional) == ExpertsConfig(6, 2, 24, frozenset({0, 1}), normalized=False)
    assert experts_of(num_experts=None, num_local_experts=3).num_experts == 3


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"decoder_sparse_step": 2}, {1, 3}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, {3}),
        ({"mlp_only_layers": []}, {0, 1, 2, 3}),
        ({"decoder_sparse_step": 5}, set()),
    ],
)
def test_dense_layers(changes: dict[str, Any], layers: set[int]) -> None:
    assert experts_of(num_hidden_layers=4, **changes).layers == layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": None}, "num_local_experts is None, expected a positive integer"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok is 7, allowed are 1 to 6"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0, expected at least 1"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3, expected a list of integers"),
        ({"shared_expert_intermediate_size": 8}, "describes a shared expert, which is not supported"),
    ],
)
def test_experts_that_are_not_supported_are_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        experts_of(**changes)


@pytest.mark.parametrize("adapter", ["adapter_config.json", "adapter/adapter_config.json"])
def test_a_folder_with_an_adapter_is_refused(tmp_path: Path, adapter: str) -> None:
    """UNO's folder: config.json says `sdar` without a key that tells, and the weights alone are Qwen3's."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()), "utf-8")
    assert parse_config(read_config(tmp_path)).family == "sdar"
    (tmp_path / adapter).parent.mkdir(exist_ok=True)
    (tmp_path / adapter).write_text("{}", "utf-8")
    with pytest.raises(CheckpointError, match=r"has adapter.*: adapters are not supported"):
        read_config(tmp_path)


STRANGE = [None, True, -1, 0, 1, 2**40, 2**62, 1e30, float("nan"), float("inf"), "x", [], ["sdar"], {}, {"a": 1}]
FAMILIES_OF: dict[str, dict[str, Any]] = {
    "llada2_moe with a pool": LLADA2 | {"expert_capacity": 5, "delete_token_id": 60, "split_token_id": 61},
    "sdar": {},
    "sdar_moe": EXPERTS,
    "llada2_moe": LLADA2,
    "stable_diffcoder": DIFFCODER,
    "Fast_dLLM_Qwen": FAST_DLLM,
    "i_dlm": I_DLM,
}
MORE_KEYS = ("mrp_residual", "mrp_scale", "mrp_default_steps", "rope_scaling", "rope_parameters", "torch_dtype")
MORE_KEYS += ("quantization_config", "attention_bias", "decoder_sparse_step", "num_shared_experts", "n_group")
MORE_KEYS += ("topk_group", "routed_scaling_factor", "partial_rotary_factor", "first_k_dense_replace", "num_experts")


@pytest.mark.parametrize("family", FAMILIES_OF)
def test_any_value_of_any_key_is_taken_or_refused_by_name(tmp_path: Path, family: str) -> None:
    """Whatever is taken makes networks. Both keys of a size are large at once, too."""
    whole = tiny_config(**FAMILIES_OF[family])
    for key in FAMILIES_OF[family] or {*whole, *MORE_KEYS}:
        for value in STRANGE:
            (tmp_path / "config.json").write_text(json.dumps(whole | {key: value}), "utf-8")
            with suppress(CheckpointError):
                empty_networks(parse_config(read_config(tmp_path)))


def test_the_largest_sizes_make_networks() -> None:
    sizes = {"hidden_size": 2**20, "intermediate_size": 2**20, "vocab_size": 2**24, "num_attention_heads": 2**14}
    experts = EXPERTS | {"num_experts": 2**14, "moe_intermediate_size": 2**20}
    empty_networks(parse_config(tiny_config(**sizes | experts | {"num_key_value_heads": 2**14, "head_dim": 2**14})))


def test_a_pipe_is_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_config(tmp_path)


def test_a_config_that_is_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000, "utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read: it is nested too deeply"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "a\0b", "x" * 5000])
def test_a_name_that_is_no_path_is_a_checkpoint_error(name: str) -> None:
    with pytest.raises(CheckpointError):
        resolve(name)
