"""The networks against implementations that are not ours: transformers' Qwen3, Qwen2 and Llama, plain formulas."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from service.model import Checkpoint, LoadOptions, load_checkpoint
from tests.reference import Reference, block_causal_mask
from tests.tiny import DIFFCODER_NAME, FAST_DLLM_NAME, GOLDEN, GOLDEN_NAMES, I_DLM_NAME, tiny_checkpoint

#: `model_type` -> transformers' config and network
NETWORKS = {
    "sdar": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "Fast_dLLM_Qwen": (Qwen2Config, Qwen2ForCausalLM),
}


def transformers_network(checkpoint: Checkpoint) -> PreTrainedModel:
    """transformers' model with the published weights, read from the file and not from our modules."""
    keys = {key: value for key, value in checkpoint.raw.items() if key not in ("model_type", "architectures")}
    config_of, model_of = NETWORKS[checkpoint.raw["model_type"]]
    model = model_of(config_of(**keys, attn_implementation="eager")).to(checkpoint.dtype).eval()
    weights = load_file(checkpoint.path / "model.safetensors")
    weights = {name: weight for name, weight in weights.items() if not name.startswith("mrp_modules")}
    if checkpoint.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("length", [1, 7, 32, 50])
@pytest.mark.parametrize("name", [*GOLDEN_NAMES, DIFFCODER_NAME, FAST_DLLM_NAME, I_DLM_NAME])
@torch.inference_mode()
def test_the_backbone_is_transformers_network_with_a_block_causal_mask(name: str, length: int) -> None:
    checkpoint = load_checkpoint(GOLDEN / name)
    tokens = torch.randint(0, 512, (1, length), generator=torch.Generator().manual_seed(length))
    allowed = block_causal_mask(length, 1 if checkpoint.config.causal else checkpoint.config.block_size)
    mask = torch.zeros(1, 1, length, length).masked_fill(~allowed, torch.finfo(torch.float32).min)
    theirs = transformers_network(checkpoint)(tokens, attention_mask=mask, output_hidden_states=True, use_cache=False)
    hidden = Reference(checkpoint).hidden(tokens[0].tolist())
    torch.testing.assert_close(hidden, theirs.hidden_states[-1][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(
        checkpoint.backbone.logits(hidden), theirs.logits[0], rtol=0, atol=5e-5
    )  # logits reach 20


@pytest.mark.parametrize("name", ["sdar-mrp-random-c", DIFFCODER_NAME, FAST_DLLM_NAME])
@torch.inference_mode()
def test_mrp_is_the_papers_formula(name: str) -> None:
    """y = eh_proj(concat(enorm(embed(x)), hnorm(h))), layers, norm; the embedding half comes first."""
    checkpoint = load_checkpoint(GOLDEN / name, LoadOptions(dtype=torch.float64))
    weights = {k: v.double() for k, v in load_file(checkpoint.path / "model.safetensors").items()}
    prefix = "mrp_modules.0.model."
    reference, tokens = Reference(checkpoint), [5, 77, 301, 509, 12]
    anchor = reference.hidden(tokens)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weights[name]

    embedded = weights["model.embed_tokens.weight"][tokens]
    both = torch.cat([norm(embedded, f"{prefix}enorm.weight"), norm(anchor, f"{prefix}hnorm.weight")], -1)
    x = both @ weights[f"{prefix}eh_proj.weight"].T
    # The layer itself is the backbone's kind: let transformers compute it.
    theirs = transformers_network(checkpoint).model
    theirs.layers = theirs.layers[: checkpoint.config.num_kv_layers - checkpoint.config.num_layers]
    layers = f"{prefix}layers."
    theirs.layers.load_state_dict({k.removeprefix(layers): v for k, v in weights.items() if k.startswith(layers)})
    theirs.norm.weight.copy_(weights[f"{prefix}norm.weight"])
    allowed = block_causal_mask(len(tokens), checkpoint.config.block_size)
    mask = torch.zeros(1, 1, *allowed.shape, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    change = theirs(inputs_embeds=x[None], attention_mask=mask, use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(reference.refined(tokens, anchor), anchor + change, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_residual_scale_and_direct() -> None:
    tokens, plain = [1, 2, 3, 4], Reference(tiny_checkpoint(3))
    anchor = plain.hidden(tokens)
    change = plain.refined(tokens, anchor) - anchor
    twice = Reference(tiny_checkpoint(3, mrp_scale=2.0)).refined(tokens, anchor)
    direct = Reference(tiny_checkpoint(3, mrp_residual=False)).refined(tokens, anchor)
    torch.testing.assert_close(twice, anchor + 2 * change)
    torch.testing.assert_close(direct, change)
    assert change.abs().max() > 0.01
