"""The autoregressive yardstick: Qwen3 of the same sizes, one token after another, by transformers' own `generate`.

Its weights are the block-diffusion checkpoint's, so its text means nothing. Its speed does not depend on the weights.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from transformers import GenerationConfig

from benchmarks.plain_loop import qwen3_of
from service.model import Checkpoint


class AutoregressiveLoop:
    """Transformers' Qwen3 with a checkpoint's weights, which are not copied.

    CheckpointError where transformers has no network of the checkpoint's family.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._model: Any = qwen3_of(checkpoint)  # its `generate` is a mixin's
        self._device, self._vocab_size = checkpoint.device, checkpoint.config.vocab_size

    def tokens_per_s(self, requests: int, prompt_tokens: int, new_tokens: int, rounds: int) -> float:
        """Tokens a second of a batch of `requests`, median of `rounds` after one to warm up.

        Prompts are random and equally long. No answer ends early. The prompt's forward is part of the time.
        """
        torch.manual_seed(0)
        prompts = torch.randint(self._vocab_size, (requests, prompt_tokens), device=self._device)
        config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        seconds = []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            answers = self._model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
            answers.tolist()  # waits for the device
            seconds.append(time.perf_counter() - begin)
        return requests * new_tokens / statistics.median(seconds[1:])
