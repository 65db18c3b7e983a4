"""Judges of text that need no labels: is it valid Python so far, how likely is it, and does it repeat itself?

A lossy mode can only be trusted on text if it is judged by more than one of them. Text that repeats itself is likely.
"""

import warnings
from codeop import compile_command
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from service.errors import CheckpointError

_RESAMPLES = 2000


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_difference(values: Sequence[float], baseline: Sequence[float], seed: int = 0) -> Interval:
    """The mean of `values - baseline`, pair by pair, with a bootstrap interval over the pairs. NaN pairs are left out.

    Source: B. Efron and R. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13: the percentile interval.
    """
    differences = np.asarray(values, float) - np.asarray(baseline, float)
    differences = differences[~np.isnan(differences)]
    if not len(differences):
        return Interval(np.nan, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    means = [float(rng.choice(differences, len(differences)).mean()) for _ in range(_RESAMPLES)]
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(differences.mean()), float(low), float(high))


def parses(prompt: str, continuation: str) -> bool:
    """Whether the whole lines of prompt and continuation are the beginning of a valid Python file.

    A statement that the last line leaves open is valid. A continuation without a line's end is judged with its prompt.
    """
    lines, _, _ = (prompt + continuation).rpartition("\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes in strings
        try:
            compile_command(lines + "\n", symbol="exec")
        except (SyntaxError, ValueError, OverflowError):
            return False
    return True


def distinct_bigrams(tokens: Sequence[int]) -> float:
    """The share of different bigrams among all bigrams of the tokens, 0 to 1; NaN below two tokens.

    Source: Li et al., A Diversity-Promoting Objective Function for Neural Conversation Models (arXiv 1510.03055).
    """
    bigrams = list(pairwise(tokens))
    return len(set(bigrams)) / len(bigrams) if bigrams else float("nan")


class LikelihoodJudge:
    """The negative log-likelihood of continuations under a causal language model of its own tokenizer.

    `path`: a checkpoint's folder, or a GGUF file, which needs the packages `gguf` and `accelerate`. Raises
    CheckpointError if transformers cannot load it.
    """

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging

        logging.disable_progress_bar()
        folder, file = (path.parent, path.name) if path.suffix == ".gguf" else (path, None)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=file)
            model = AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=file, dtype=torch.float32)
        except (OSError, ValueError, ImportError) as error:
            raise CheckpointError(f"the judge {path} cannot be loaded: {error}") from error
        self._model = model.eval()
        self._judged: dict[tuple[str, str], float] = {}

    def nats_per_character(self, prompt: str, continuation: str) -> float:
        """The negative log-likelihood of a continuation by its characters; NaN for an empty one."""
        if not continuation:
            return float("nan")
        pair = prompt, continuation
        if pair not in self._judged:
            self._judged[pair] = self._nats(prompt, continuation) / len(continuation)
        return self._judged[pair]

    @torch.inference_mode()
    def _nats(self, prompt: str, continuation: str) -> float:
        context = self._tokenizer(prompt, add_special_tokens=False).input_ids
        following = self._tokenizer(continuation, add_special_tokens=False).input_ids
        logits = self._model(torch.tensor([context + following])).logits[0, len(context) - 1 : -1]
        likelihoods = logits.log_softmax(-1).gather(1, torch.tensor(following)[:, None])
        return -float(likelihoods.sum())
