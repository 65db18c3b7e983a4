"""Static decoding of problems during the training. The engine's own count is `python -m benchmarks.evaluate`'s."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from service.model import Backbone
from training.batch import Batch
from training.demo.tokenizer import END, MASK, control, encode_prompt
from training.layout import Layout
from training.rollout import roll_out

_LONGEST = 96


def accuracy(
    backbone: Backbone, tokenizer: Tokenizer, prompts: Sequence[str], block: int, check: Callable[[str, str], bool]
) -> float:
    """The share of the prompts that static decoding answers right, 0 to 1."""
    groups = defaultdict[int, list[str]](list)
    for prompt in prompts:
        groups[len(encode_prompt(tokenizer, prompt))].append(prompt)
    right = 0
    for group in groups.values():
        answers = static_answers(backbone, tokenizer, group, block)
        right += sum(check(prompt, answer) for prompt, answer in zip(group, answers, strict=True))
    return right / len(prompts)


def static_answers(backbone: Backbone, tokenizer: Tokenizer, prompts: Sequence[str], block: int) -> list[str]:
    """The answers to prompts of one length in tokens."""
    mask, end = control(tokenizer, MASK), control(tokenizer, END)
    tokens = torch.tensor([encode_prompt(tokenizer, prompt) for prompt in prompts])
    start = tokens.shape[1]
    ended = torch.zeros(len(tokens), dtype=torch.bool)
    while not ended.all() and tokens.shape[1] < _LONGEST:
        first = tokens.shape[1] // block * block
        missing = first + block - tokens.shape[1]
        tokens = torch.cat([tokens, torch.full((len(tokens), missing), mask)], 1)
        tokens[:, first:] = _decoded(backbone, tokens, Layout(first + block, first, block), (mask, end))
        ended |= (tokens[:, max(start, first) :] == end).any(1)
    answers = [row[start:] for row in tokens.tolist()]
    return [tokenizer.decode(row[: row.index(end)] if end in row else row) for row in answers]


def _decoded(backbone: Backbone, tokens: Tensor, layout: Layout, ids: tuple[int, int]) -> Tensor:
    """The last block of `tokens` `[B, S]`, decoded, `[B, block]`."""
    mask, end = ids
    answer = tokens[:, layout.first :] == mask
    steps = roll_out(backbone, Batch(layout, tokens, answer, torch.zeros_like(answer), mask), end).steps
    last = steps[-1]
    return last.tokens.scatter(
        1, last.position, torch.where(last.open, last.token, last.tokens.gather(1, last.position))
    )
