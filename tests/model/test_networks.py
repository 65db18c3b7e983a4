"""The networks against implementations that are not ours: transformers' Qwen3, plain formulas."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from service.model import Checkpoint, LoadOptions, load_checkpoint
from tests.reference import Reference, block_causal_mask
from tests.tiny import GOLDEN, GOLDEN_NAMES, tiny_checkpoint


def qwen3(checkpoint: Checkpoint) -> Qwen3ForCausalLM:
    """transformers' model with the published weights, read from the file and not from our modules."""
    keys = {key: value for key, value in checkpoint.raw.items() if key not in ("model_type", "architectures")}
    model = Qwen3ForCausalLM(Qwen3Config(**keys, attn_implementation="eager")).to(checkpoint.dtype).eval()
    weights = load_file(checkpoint.path / "model.safetensors")
    model.load_state_dict({name: weight for name, weight in weights.items() if not name.startswith("mrp_modules")})
    return model


@pytest.mark.parametrize("length", [1, 7, 32, 50])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
@torch.inference_mode()
def test_the_backbone_is_transformers_qwen3_with_a_block_causal_mask(name: str, length: int) -> None:
    checkpoint = load_checkpoint(GOLDEN / name)
    tokens = torch.randint(0, 512, (1, length), generator=torch.Generator().manual_seed(length))
    allowed = block_causal_mask(length, checkpoint.config.block_size)
    mask = torch.zeros(1, 1, length, length).masked_fill(~allowed, torch.finfo(torch.float32).min)
    theirs = qwen3(checkpoint)(tokens, attention_mask=mask, output_hidden_states=True, use_cache=False)
    hidden = Reference(checkpoint).hidden(tokens[0].tolist())
    torch.testing.assert_close(hidden, theirs.hidden_states[-1][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(
        checkpoint.backbone.logits(hidden), theirs.logits[0], rtol=0, atol=5e-5
    )  # logits reach 20


@torch.inference_mode()
def test_mrp_is_the_papers_formula() -> None:
    """y = eh_proj(concat(enorm(embed(x)), hnorm(h))), layers, norm; the embedding half comes first."""
    checkpoint = load_checkpoint(GOLDEN / "sdar-mrp-random-c", LoadOptions(dtype=torch.float64))
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
    theirs = qwen3(checkpoint).model
    theirs.layers = theirs.layers[:1]
    layer = f"{prefix}layers.0."
    theirs.layers[0].load_state_dict({k.removeprefix(layer): v for k, v in weights.items() if k.startswith(layer)})
    theirs.norm.weight.copy_(weights[f"{prefix}norm.weight"])
    mask = torch.zeros(1, 1, len(tokens), len(tokens), dtype=torch.float64)
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
