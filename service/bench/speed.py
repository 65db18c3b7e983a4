"""The engine beside the plain loop: tokens per second at several numbers of concurrent requests.

Rounds are interleaved and medians reported, because machines are shared. The plain loop serves one
request at a time, so its rate does not depend on how many wait; in every round it decodes a sample of
the same requests.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from service.bench.plain_loop import PlainLoop
from service.bench.rounds import Rounds
from service.decode.mode import DecodingMode
from service.engine import Engine, GenerationRequest

_PLAIN_SAMPLE = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """Random prompts of `prompt_tokens` (from, to) and completions of `new_tokens`, nothing stops early."""

    params: DecodingMode
    prompt_tokens: tuple[int, int] = (16, 64)
    new_tokens: int = 64
    seed: int = 0

    def longest(self, block_size: int) -> int:
        """Tokens of KV that its longest request needs."""
        return self.prompt_tokens[1] + self.new_tokens + 2 * block_size

    def requests(self, engine: Engine, count: int, round_number: int) -> list[GenerationRequest]:
        """`count` requests; the same round gives the same requests."""
        rng = random.Random(f"{self.seed}/{count}/{round_number}")
        allowed = [token for token in range(engine.model.vocab_size) if token != engine.model.mask_token_id]
        return [
            GenerationRequest(
                str(number),
                tuple(rng.choices(allowed, k=rng.randint(*self.prompt_tokens))),
                self.params,
                max_new_tokens=self.new_tokens,
            )
            for number in range(count)
        ]


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """Medians over rounds at one concurrency, in tokens per second, and the median ratio. None without a plain loop."""

    concurrency: int
    engine: float
    plain: float | None
    ratio: float | None


def compare_with_plain_loop(
    engine: Engine, plain: PlainLoop | None, workload: Workload, rounds: Rounds
) -> Iterator[SpeedRow]:
    """Interleaved rounds of engine and plain loop, if there is one, on the same requests."""
    for concurrency in rounds.concurrencies:
        ours, theirs = list[float](), list[float]()
        for number in range(rounds.count):
            requests = workload.requests(engine, concurrency, number)
            ours.append(engine_rate(engine, requests))
            if plain is not None:
                theirs.append(_plain_rate(plain, requests[:_PLAIN_SAMPLE]))
            rounds.after(f"{concurrency} together, engine and plain loop")
        ratios = [own / other for own, other in zip(ours, theirs, strict=False)]
        yield SpeedRow(concurrency, statistics.median(ours), _median(theirs), _median(ratios))


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def engine_rate(engine: Engine, requests: list[GenerationRequest]) -> float:
    """Tokens per second of one engine over requests that are all there at once."""
    begin = time.perf_counter()
    completions = engine.generate(requests)
    return sum(len(completion.token_ids) for completion in completions) / (time.perf_counter() - begin)


def _plain_rate(plain: PlainLoop, requests: list[GenerationRequest]) -> float:
    begin = time.perf_counter()
    tokens = sum(len(plain.generate(request.prompt_token_ids, request.max_new_tokens)) for request in requests)
    return tokens / (time.perf_counter() - begin)
