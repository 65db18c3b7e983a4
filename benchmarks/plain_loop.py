"""The published way to decode SDAR, as a yardstick: transformers' Qwen3, Qwen3-MoE or Llama, one request at a time.

Static decoding with a DynamicCache. Source: SDAR's `block_diffusion_generate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from service.model import Checkpoint, published_weights

#: family -> transformers' config and network
_MODELS: Mapping[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "sdar": (Qwen3Config, Qwen3ForCausalLM),
    "sdar_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "stable_diffcoder": (LlamaConfig, LlamaForCausalLM),
}
_OURS = ("model_type", "architectures", "auto_map", "attn_implementation")


def plain_loop_of(checkpoint: Checkpoint) -> PlainLoop | None:
    """The loop over a checkpoint; None where transformers has no network of its family."""
    return PlainLoop(checkpoint) if checkpoint.config.family in _MODELS else None


class PlainLoop:
    """Decodes one request after another with transformers' network. Its weights are the checkpoint's own."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._device, self._config = checkpoint.device, checkpoint.config
        config_of, model_of = _MODELS[checkpoint.config.family]
        config = config_of(**{key: value for key, value in checkpoint.raw.items() if key not in _OURS})
        with torch.device("meta"):
            model = model_of(config)
        weights = published_weights(checkpoint.config, checkpoint.backbone, None, model.state_dict().keys())
        if checkpoint.config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        model.load_state_dict(weights, assign=True)
        model.model.rotary_emb = type(model.model.rotary_emb)(config).to(checkpoint.device)  # no file has its buffer
        self._model: nn.Module = model.eval()

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], max_new_tokens: int, stop: frozenset[int] = frozenset()) -> list[int]:
        """The completion of one prompt, greedy, one token revealed per forward."""
        size = self._config.block_size
        stored = len(prompt) // size * size
        cache = self.prefill(prompt[:stored])
        head, output = list(prompt[stored:]), list[int]()
        while len(output) < max_new_tokens and not stop.intersection(output):
            block = self._denoise(head + [self._config.mask_token_id] * (size - len(head)), stored, cache)
            self._forward(block, stored, cache)
            output += block[len(head) :]
            stored, head = stored + size, []
        ends = [index for index, token in enumerate(output) if token in stop]
        return output[: min([max_new_tokens, *ends])]

    @torch.inference_mode()
    def prefill(self, blocks: Sequence[int], logits: bool = True) -> DynamicCache:
        """The cache behind whole blocks: one forward over all of them, with a dense block-causal mask.

        `logits`: the logits of all positions, as the published loop has them; else of the last position alone.
        """
        cache = DynamicCache()
        if blocks:
            numbers = torch.arange(len(blocks), device=self._device) // self._config.block_size
            self._forward(list(blocks), 0, cache, numbers[:, None] >= numbers, logits_to_keep=0 if logits else 1)
        return cache

    def _denoise(self, block: list[int], start: int, cache: DynamicCache) -> list[int]:
        tokens = torch.tensor(block, device=self._device)
        masked = tokens == self._config.mask_token_id
        while masked.any():
            logits = self._forward(tokens.tolist(), start, cache)
            cache.crop(-len(block))
            logits[:, self._config.mask_token_id] = -torch.inf
            confidence, chosen = logits.float().softmax(-1).max(-1)
            position = confidence.masked_fill(~masked, -1.0).argmax()
            tokens[position] = chosen[position]
            masked[position] = False
        result: list[int] = tokens.tolist()
        return result

    def _forward(
        self, tokens: list[int], start: int, cache: DynamicCache, mask: Tensor | None = None, **options: int
    ) -> Tensor:
        """Logits `[T, V]` of tokens at `start`; their keys are appended to the cache."""
        positions = torch.arange(start, start + len(tokens), device=self._device)
        if mask is None:
            mask = torch.ones(len(tokens), start + len(tokens), dtype=torch.bool, device=self._device)
        output = self._model(
            input_ids=torch.tensor([tokens], device=self._device),
            position_ids=positions[None],
            attention_mask=mask[None, None],
            past_key_values=cache,
            use_cache=True,
            **options,
        )
        logits: Tensor = output.logits[0]
        return logits
