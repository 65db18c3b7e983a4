"""Checkpoints that are not what config.json seems to say, and what `mrp-serve check` says of each."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from service.errors import CheckpointError
from service.model import Backbone, parse_config, save_checkpoint
from service.model.causality import TEXT
from service.model.families import unknown_keys
from service.model.files import read_config
from service.text import TextCodec
from tests.reference import block_causal_mask, dense_attention
from tests.thinned import fast_rows
from tests.tiny import EXPERTS, LLADA2, tiny_config

DEMO = Path(__file__).resolve().parents[2] / "service" / "demo"

#: config.json as published, but for `auto_map`, `architectures`, the versions of libraries and what all of Qwen3's say:
QWEN3: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_sliding_window": False, "vocab_size": 151936, "num_attention_heads": 32, "max_position_embeddings": 32768,
}  # fmt: skip
SDAR = QWEN3 | {"model_type": "sdar", "num_hidden_layers": 36, "max_window_layers": 36, "num_key_value_heads": 8}
SDAR_TRAINING = {"debug": False, "ep_size": 1, "micro_forward": False, "skip_checkpoint": False, "use_deepep": False}
LLADA2_PUBLISHED: dict[str, Any] = {
    "model_type": "llada2_moe", "vocab_size": 157184, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "hidden_act": "silu",
    "use_qkv_bias": False, "use_bias": False, "rms_norm_eps": 1e-06, "attention_dropout": 0.0,
    "initializer_range": 0.02, "rope_theta": 600000, "partial_rotary_factor": 0.5, "pad_token_id": 156892,
    "num_experts": 256, "num_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "routed_scaling_factor": 2.5, "moe_intermediate_size": 512, "first_k_dense_replace": 1,
    "output_router_logits": False,
}  # fmt: skip
LLADA2_KEYS: dict[str, Any] = {
    "embedding_dropout": 0.0, "output_dropout": 0.0, "max_window_layers": 28, "moe_router_enable_expert_bias": True,
    "norm_head": False, "norm_softmax": False, "norm_topk_prob": True, "rope_scaling": None, "rotary_dim": 64,
    "router_dtype": "fp32", "score_function": "sigmoid", "tie_word_embeddings": False,
}  # fmt: skip

#: a name and its source -> config.json
PUBLISHED: dict[str, dict[str, Any]] = {
    # the hub's JetLM/SDAR-4B-Chat
    "SDAR-4B-Chat": SDAR | SDAR_TRAINING | {"hidden_size": 2560, "intermediate_size": 9728, "fuse_cross_entropy": True},
    # GitHub's Xenearkr/DARE, models/SDAR-30B-A3B-Chat, commit fd704cf
    "SDAR-30B-A3B-Chat": QWEN3 | {
        "model_type": "sdar_moe", "num_hidden_layers": 48, "max_window_layers": 48, "num_key_value_heads": 4,
        "hidden_size": 2048, "intermediate_size": 6144, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8,
        "output_router_logits": False, "router_aux_loss_coef": 0.001, "use_cache": True,
    },
    # the hub's inclusionAI/LLaDA2.1-mini
    "LLaDA2.1-mini": LLADA2_PUBLISHED | LLADA2_KEYS | {"max_position_embeddings": 32768, "sliding_window": 4096},
    # the hub's inclusionAI/LLaDA2.2-flash, as FluxServe's guide to LLaDA2.2 tells its keys
    "LLaDA2.2-flash": LLADA2_PUBLISHED | LLADA2_KEYS | {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 131072,
        "rope_theta": 3000000, "block_size": 32, "expert_capacity": 48, "use_qk_norm": True,
        "delete_token_id": 156930, "split_token_id": 156931,
    },
    # the hub's inclusionAI/LLaDA2.0-Uni: its vocabulary holds images
    "LLaDA2.0-Uni": LLADA2_PUBLISHED | {
        "vocab_size": 173568, "max_position_embeddings": 8192, "use_qk_norm": True, "image_token_offset": 157184,
        "rope_parameters": {"rope_type": "default", "rope_theta": 600000, "partial_rotary_factor": 0.5},
    },
    # the hub's autoprogrammer/sdar_4b_multi_block_causal-final
    "SDAR-4B, several blocks": SDAR | SDAR_TRAINING | {
        "hidden_size": 2560, "intermediate_size": 9728, "block_size": 4, "mask_token_id": 151669,
        "block_causal_prompt": True, "fuse_cross_entropy": True,
    },
    # GitHub's thuEcstasy/I-DLM, training/model/Qwen3-8B-b3-allmasked, commit 3342a17: a causal model
    "I-DLM-8B": SDAR | {
        "eos_token_id": 151645, "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
        "attn_implementation": "flex_attention", "block_size": 3, "mask_token_id": 151669, "fuse_cross_entropy": True,
    },
    # as the training code's configuration names it
    "I-DLM-8B with its key": SDAR | {
        "hidden_size": 4096, "intermediate_size": 12288, "block_size": 3, "mask_token_id": 151669,
        "use_regular_causal": True,
    },
    # GitHub's HoangMaizzz/failfasttesting, Fast_dLLM_v2_1.5B, commit 7cc16bb
    "Fast_dLLM_v2_1.5B": {
        "attention_dropout": 0.0, "bd_size": 32, "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
        "hidden_size": 1536, "initializer_range": 0.02, "intermediate_size": 8960,
        "layer_types": ["full_attention"] * 28, "max_position_embeddings": 32768, "max_window_layers": 21,
        "model_type": "Fast_dLLM_Qwen", "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2,
        "pad_token_id": 151645, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    # the hub's PrunaAI/ByteDance-Seed-Stable-DiffCoder-8B-Instruct-HQQ-8bit-smashed: it says no more than Llama's
    "Stable-DiffCoder-8B as Llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 128, "attention_bias": False,
        "mlp_bias": False, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192, "rope_theta": 500000.0, "vocab_size": 155136,
    },
    # GitHub's inclusionAI/dFactory, configs/model_configs/llada2_mini, commit c29d72c: while it is trained
    "LLaDA2 in training": LLADA2_PUBLISHED | LLADA2_KEYS | {"model_type": "llada2_moe_veomni", "use_rmsnorm": True},
}  # fmt: skip
#: smaller sizes, and tokens of the demo's vocabulary
SMALL: dict[str, Any] = {
    "vocab_size": 1024, "mask_token_id": 4, "eos_token_id": 3, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 256, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_group": 4, "topk_group": 2, "expert_capacity": 3, "delete_token_id": 1022, "split_token_id": 1023,
}  # fmt: skip


def written(
    folder: Path, config: dict[str, Any], train: Callable[[Backbone, torch.Tensor], None] | None = None
) -> Path:
    """A checkpoint of this config with random weights and the demo's tokenizer, trained if that is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    torch.manual_seed(0)
    backbone = Backbone(parse_config(config))
    if train is not None:
        train(backbone, torch.tensor(TextCodec.load(folder).encode(TEXT)[:64]))
    save_checkpoint(folder, config, backbone, None)
    return folder


def small(config: dict[str, Any]) -> dict[str, Any]:
    added = ("mask_token_id", "eos_token_id")
    return config | {key: value for key, value in SMALL.items() if key in config or key in added}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("SDAR-4B-Chat", ("family sdar", "block size 4, the default: config.json has no such key")),
        ("SDAR-30B-A3B-Chat", ("family sdar_moe", "experts 2 layers have 8, a token uses 2 of each")),
        ("LLaDA2.1-mini", ("family llada2_moe", "block size 32, the default")),
        ("LLaDA2.2-flash", ("a block's tokens share 3", "end [3], delete and split [1022, 1023]")),
        ("LLaDA2.0-Uni", ("warning: config.json: nothing reads image_token_offset",)),
        ("SDAR-4B, several blocks", ("warning: config.json: nothing reads block_causal_prompt",)),
        (
            "Fast_dLLM_v2_1.5B",
            ("family Fast_dLLM_Qwen", "block size 32, by config.json", "revealed in sub-blocks of 8"),
        ),
        ("I-DLM-8B", ("family sdar", "block size 3, by config.json")),  # with weights that are not trained
        (
            "I-DLM-8B with its key",
            (
                "family i_dlm",
                "block size 8, the default",
                "each predicts the next token, causally; 3 masks draft",
                "modes static, dynamic, sequential, entropy, speculative weights",
            ),
        ),
    ],
)
def test_check_knows_a_published_config(run_program, capsys, tmp_path, name, facts):
    assert run_program("check", written(tmp_path, small(PUBLISHED[name])), "--device", "cpu") == 0
    out, err = capsys.readouterr()
    report = " ".join((out + err).split())
    for fact in (*facts, "loss of a text", "one block decoded in"):
        assert fact in report
    assert ("warning" in err) == any("warning" in fact for fact in facts)


@pytest.mark.parametrize(
    ("name", "kind"), [("Stable-DiffCoder-8B as Llama", "llama"), ("LLaDA2 in training", "llada2_moe_veomni")]
)
def test_check_refuses_another_family_by_its_name(run_program, capsys, tmp_path, name, kind):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]), "utf-8")
    assert run_program("check", tmp_path) == 1
    assert f"model_type is '{kind}', supported are Fast_dLLM_Qwen, i_dlm, llada2_moe, sdar" in capsys.readouterr().err


def test_the_published_configs_make_configs_at_their_own_sizes(tmp_path):
    for name, blocks in (
        ("SDAR-4B-Chat", 4),
        ("SDAR-30B-A3B-Chat", 4),
        ("LLaDA2.1-mini", 32),
        ("LLaDA2.0-Uni", 32),
        ("LLaDA2.2-flash", 32),
        ("Fast_dLLM_v2_1.5B", 32),
    ):
        (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]), "utf-8")
        assert parse_config(read_config(tmp_path)).block_size == blocks


# --- other networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_bias": True}, "mlp_bias is True, a part of a network that is not supported"),
        ({"use_qk_norm": False}, "use_qk_norm is False"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
        ({"logit_scale": 0.0625}, "logit_scale is 0.0625"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"hidden_activation": "gelu_pytorch_tanh"}, "hidden_activation is 'gelu_pytorch_tanh'"),
        ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar is 256"),
        (EXPERTS | {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'"),
        (EXPERTS | {"routed_scaling_factor": 2.5}, "routed_scaling_factor is 2.5"),
        (LLADA2 | {"norm_softmax": True}, "norm_softmax is True"),
        (EXPERTS | {"expert_capacity": 48}, "expert_capacity is 48"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is .*, supported are only layers of"),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters differs by the kind of layer"),
    ],
)
def test_a_key_of_another_network_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        parse_config(tiny_config(**changes))


def test_neutral_values_are_taken() -> None:
    neutral = {"mlp_bias": False, "use_qk_norm": True, "partial_rotary_factor": 1.0, "logit_scale": 1, "clip_qkv": None}
    config = tiny_config(**neutral, layer_types=["full_attention"] * 2)
    assert parse_config(config) == parse_config(tiny_config())
    assert not unknown_keys(config)
    assert unknown_keys(config | {"new": 1, "_name_or_path": "x", "mrp_scale": 1.0}) == ["new"]


def test_llada2s_rotated_share_may_stand_in_rope_parameters() -> None:
    raw = tiny_config(**LLADA2 | {"partial_rotary_factor": None}, rope_parameters={"partial_rotary_factor": 0.25})
    assert parse_config(raw).rotary_dim == 4


# --- causal weights ----------------------------------------------------------------------------------

#: the look-alike's config.json, which says nothing; SDAR's; and that of a family whose outputs are shifted
CAUSAL, BLOCK, SHIFTED = (small(PUBLISHED[name]) for name in ("I-DLM-8B", "SDAR-4B-Chat", "Fast_dLLM_v2_1.5B"))


def trained(loss: Callable[[Backbone, torch.Tensor], torch.Tensor]) -> Callable[[Backbone, torch.Tensor], None]:
    def train(backbone: Backbone, tokens: torch.Tensor) -> None:
        optimizer = torch.optim.Adam(backbone.parameters(), lr=3e-3)
        for _ in range(240 if loss is shifted_masks_in_blocks else 120):
            optimizer.zero_grad()
            loss(backbone, tokens).backward()
            optimizer.step()

    return train


def hidden(backbone: Backbone, rows: list[torch.Tensor], seen: torch.Tensor) -> torch.Tensor:
    """Hidden states of a text that is repeated, `[rows, T, H]`."""
    positions = torch.arange(len(rows[0])).repeat(len(rows))
    return backbone(torch.cat(rows)[None], positions[None], dense_attention(seen))[0].view(len(rows), len(rows[0]), -1)


def causal(backbone: Backbone, tokens: torch.Tensor) -> torch.Tensor:
    """As an autoregressive model is trained; UNO's weights without its adapter are one."""
    [states] = hidden(backbone, [tokens], block_causal_mask(len(tokens), 1))
    return F.cross_entropy(backbone.logits(states[:-1]), tokens[1:])


def masks_after_a_causal_text(backbone: Backbone, tokens: torch.Tensor) -> torch.Tensor:
    """As I-DLM is trained: everything is causal, and a mask's output is the token after it, too."""
    size = len(tokens)
    before, blocks = block_causal_mask(size, 1), block_causal_mask(size, CAUSAL["block_size"])
    same = before & blocks.T
    seen = torch.cat([torch.cat([before, before & False], 1), torch.cat([before & ~same, same], 1)])
    states = hidden(backbone, [tokens, torch.full_like(tokens, CAUSAL["mask_token_id"])], seen)[:, :-1]
    return F.cross_entropy(backbone.logits(states).flatten(0, 1), tokens[1:].repeat(2))


def masks_in_blocks(backbone: Backbone, tokens: torch.Tensor) -> torch.Tensor:
    """As SDAR is trained: masks of a block see the blocks before it, and one another."""
    blocks = block_causal_mask(len(tokens), 4)
    same, hides = blocks & blocks.T, torch.rand(len(tokens)) < 0.5
    seen = torch.cat([torch.cat([blocks, blocks & False], 1), torch.cat([blocks & ~same, same], 1)])
    states = hidden(backbone, [tokens, tokens.masked_fill(hides, BLOCK["mask_token_id"])], seen)[1]
    return F.cross_entropy(backbone.logits(states[hides]), tokens[hides])


def shifted_masks_in_blocks(backbone: Backbone, tokens: torch.Tensor) -> torch.Tensor:
    """As Fast-dLLM v2 is trained: masks of a block of 32 see the block, and the output before a mask is its token."""
    blocks = block_causal_mask(len(tokens), 32)
    same, hides = blocks & blocks.T, torch.rand(len(tokens)) < 0.5
    seen = torch.cat([torch.cat([blocks, blocks & False], 1), torch.cat([blocks & ~same, same], 1)])
    states = hidden(backbone, [tokens, tokens.masked_fill(hides, SHIFTED["mask_token_id"])], seen)[1]
    return F.cross_entropy(backbone.logits(states[:-1][hides[1:]]), tokens[1:][hides[1:]])


@pytest.mark.parametrize(
    ("config", "loss"),
    fast_rows(
        lambda config, loss: (config is CAUSAL) == (loss is causal),
        itertools.product((CAUSAL, SHIFTED), (causal, masks_after_a_causal_text)),
    ),
)
def test_check_refuses_causal_weights_whatever_config_json_says(run_program, capsys, tmp_path, config, loss):
    folder = written(tmp_path, config, trained(loss))
    assert run_program("check", folder, "--device", "cpu") == 1
    out, err = capsys.readouterr()
    assert f"{folder}: a causal model with shifted logits, as I-DLM and UNO are" in " ".join(err.split())
    assert "loss of a text" in out


def test_check_asks_the_opposite_of_a_causal_family(run_program, capsys, tmp_path):
    config = small(PUBLISHED["I-DLM-8B with its key"])
    for name, loss in (("drafts", masks_after_a_causal_text), ("none", causal)):
        assert run_program("check", written(tmp_path / name, config, trained(loss)), "--device", "cpu") == 0
    folder = written(tmp_path / "blocks", config, trained(masks_in_blocks))
    assert run_program("check", folder, "--device", "cpu") == 1
    assert f"{folder}: a block-causal model, and not a causal one" in " ".join(capsys.readouterr().err.split())


def test_check_writes_no_page_size_over_the_masks_of_a_causal_model(run_program, tmp_path):
    folder = written(tmp_path, small(PUBLISHED["I-DLM-8B with its key"]))
    assert run_program("check", folder, "--device", "cpu", "--block-size", "16", "--write") == 0
    assert parse_config(read_config(folder)).draft_masks == 3


@pytest.mark.parametrize(
    ("config", "loss", "tied"),
    fast_rows(
        lambda config, loss, tied: loss is None or tied == (config is BLOCK),
        [
            *itertools.product([BLOCK], [None, masks_in_blocks], [False, True]),
            *itertools.product([SHIFTED], [None, shifted_masks_in_blocks], [False, True]),
        ],
    ),
)
def test_check_takes_block_causal_weights_and_untrained_ones(run_program, capsys, tmp_path, config, loss, tied):
    config = config | {"tie_word_embeddings": tied}
    assert run_program("check", written(tmp_path, config, loss and trained(loss)), "--device", "cpu") == 0
    assert "loss of a text" in capsys.readouterr().out
