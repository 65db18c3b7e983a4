"""What the prefix cache saves and costs: the time to the first block of a prompt without it, new to it, and known.

The three are interleaved and medians reported, because machines are shared. The prompts are random, so nothing is
shared but what a round repeats on purpose.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from service.decode.modes import Static
from service.engine import Engine, EngineConfig, GenerationRequest
from service.model import Checkpoint


@dataclass(frozen=True, slots=True)
class PrefixTime:
    """Medians in milliseconds to the first block of a prompt: without a cache, the first time, and again."""

    prompt_tokens: int
    without: float
    first: float
    again: float


def possible_lengths(checkpoint: Checkpoint, lengths: Sequence[int]) -> list[int]:
    """The lengths of prompts that are measured: each once, cut to what the model takes."""
    size = checkpoint.config.block_size
    most = checkpoint.config.max_positions // size * size - size
    return sorted({min(length, most) for length in lengths})


def prefix_times(
    checkpoint: Checkpoint, lengths: Sequence[int], rounds: int, attention: str = "auto"
) -> Iterator[PrefixTime]:
    """One request alone, its first block revealed in one forward, at every one of the possible lengths."""
    possible = possible_lengths(checkpoint, lengths)
    tokens = 4 * (possible[-1] + 2 * checkpoint.config.block_size)
    limits = EngineConfig(kv_cache_tokens=tokens, attention=attention)
    plain, caching = (Engine(checkpoint, replace(limits, prefix_cache=on)) for on in (False, True))
    rng = random.Random(0)
    for length in possible:
        rows = []
        for _ in range(rounds + 1):  # the first round warms up
            request = _request(checkpoint, length, rng)
            rows.append([_first_block_ms(engine, request) for engine in (plain, caching, caching)])
        yield PrefixTime(length, *(statistics.median(column) for column in zip(*rows[1:], strict=True)))


def _request(checkpoint: Checkpoint, length: int, rng: random.Random) -> GenerationRequest:
    config = checkpoint.config
    allowed = [token for token in range(config.vocab_size) if token != config.mask_token_id]
    prompt = tuple(rng.choices(allowed, k=length))
    return GenerationRequest("prefix", prompt, Static(config.block_size), max_new_tokens=config.block_size)


def _first_block_ms(engine: Engine, request: GenerationRequest) -> float:
    [completion] = engine.generate([request])
    return 1e3 * (completion.stats.first_block_s or 0.0)
