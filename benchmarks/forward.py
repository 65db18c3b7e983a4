"""`python -m benchmarks.forward`: the price of forwards with long prompts or different lengths, as ratios.

Random weights, one process, each ratio of things measured in turns, so a machine's speed cancels out. On one thread the
clock is the thread's own time, whoever else wants the core.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.options import OutputOption, ThreadsOption, run, use_threads, write_rows
from benchmarks.shapes import random_checkpoint
from service.decode.block import MASKED, Block
from service.decode.modes import Static
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.model import Checkpoint, LoadOptions

_SIZE = 4
#: config.json of the networks: 8 layers of 512, no MRP, an output head with the 1.7B shape's part of the time
RAW = {
    "model_type": "sdar", "block_size": _SIZE, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 16384,
    "mask_token_id": 16383, "eos_token_id": 16382, "max_position_embeddings": 8192, "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
#: tokens of the short prompts beside which a long one is measured
_SHORT = 64
_STEPS = 12


def command(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 5,
    threads: ThreadsOption = None,
    output: OutputOption = None,
) -> None:
    """Compares forwards with random weights: long prompts, mixed lengths, prompts beside decoding, many states."""
    use_threads(threads)
    with Console(stderr=True).status("measuring …"):
        rows = list(ratios(rounds))
    table = Table("what", "ms", "compared with", "ratio", "limit", box=None, pad_edge=False)
    for row in rows:
        limit = "" if row.limit is None else f"≤ {row.limit:.2f}"
        table.add_row(row.what, f"{row.milliseconds:,.1f}", f"{row.compared:,.1f}", f"{row.ratio:.2f}", limit)
    Console().print(table)
    write_rows(output, [asdict(row) for row in rows])


@dataclass(frozen=True, slots=True)
class Ratio:
    """Medians over rounds: the milliseconds of two forwards or steps that are compared, and their ratio.

    `limit`: the largest ratio that is good; None: there is no limit.
    """

    what: str
    milliseconds: float
    compared: float
    ratio: float
    limit: float | None


def ratios(rounds: int, seed: int = 0) -> Iterator[Ratio]:
    """All ratios, one after another. Ratios over several steps have fewer rounds."""
    bench = Bench(random_checkpoint(RAW, LoadOptions()), random.Random(seed))
    for length, limit in ((512, 1.1), (1024, 1.0), (2048, 0.8), (4096, 0.8)):
        yield from bench.first_block(length, limit, rounds)
    yield bench.together(rounds)
    yield bench.mixed_step(rounds)
    yield bench.longest_step(rounds)
    yield bench.states(rounds)


class Bench:
    """Measures over one checkpoint. Prompts are random."""

    def __init__(self, checkpoint: Checkpoint, rng: random.Random) -> None:
        self._checkpoint, self._rng = checkpoint, rng
        self._clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def first_block(self, length: int, limit: float, rounds: int) -> Iterator[Ratio]:
        """A lone prompt's first block, over transformers' prefill of the prompt with its logits, and without."""
        from benchmarks.plain_loop import PlainLoop

        engine, plain = self._engine(), PlainLoop(self._checkpoint)

        def block(prompt: tuple[int, ...]) -> None:
            engine.generate([_request("x", prompt, _SIZE, Static(_SIZE))])

        def pair(logits: bool) -> tuple[float, float]:
            prompt = self._prompt(length)
            return self._seconds(partial(block, prompt)), self._seconds(partial(plain.prefill, prompt, logits))

        what = f"first block of {length} tokens / transformers' prefill"
        yield _ratio(what, partial(pair, True), limit, rounds)
        yield _ratio(f"{what} without logits", partial(pair, False), None, rounds)

    def together(self, rounds: int) -> Ratio:
        """15 short prompts and a long one, 16 tokens each."""
        engine = self._engine()

        def pair() -> tuple[float, float]:
            prompts = [self._prompt(_SHORT) for _ in range(15)] + [self._prompt(2048)]
            requests = [_request(str(index), prompt, 16) for index, prompt in enumerate(prompts)]
            apart = sum(self._seconds(partial(engine.generate, [request])) for request in requests)
            return self._seconds(partial(engine.generate, requests)), apart

        return _ratio("15 requests of 64 tokens and one of 2048: together / apart", pair, 1.0, rounds)

    def mixed_step(self, rounds: int) -> Ratio:
        """A step over 15 short rows and one behind 4,096 tokens, over the sum of the two steps."""
        short = [_request(str(index), self._prompt(_SHORT), 512) for index in range(15)]
        long = [_request("long", self._prompt(4096), 256)]
        engines = [self._running(requests) for requests in (short, long, [*short, *long])]

        def pair() -> tuple[float, float]:
            times = list(zip(*([self._seconds(engine.step) for engine in engines] for _ in range(_STEPS)), strict=True))
            alone, far, both = (statistics.median(column) for column in times)
            return both, alone + far

        return _ratio("step over 15 short rows and one behind 4096 / the two apart", pair, 1.15, min(rounds, 8))

    def longest_step(self, rounds: int) -> Ratio:
        """Eight running requests: the longest step until a prompt of 2,048 tokens has its first block."""

        def pair() -> tuple[float, float]:
            engine = self._running([_request(str(index), self._prompt(_SHORT), 512) for index in range(8)])
            quiet = statistics.median(self._seconds(engine.step) for _ in range(_STEPS))
            engine.submit(_request("long", self._prompt(2048), _SIZE, Static(_SIZE)))
            longest, ended = 0.0, False
            while not ended:
                begin = self._clock()
                events = engine.step()
                longest = max(longest, self._clock() - begin)
                ended = any(event.request_id == "long" for event in events)
            return longest, quiet

        return _ratio("longest step while 2048 tokens come in / quiet step, 8 running", pair, 4.0, min(rounds, 3))

    def states(self, rounds: int) -> Ratio:
        """17 states of one block behind 4,096 tokens, over the same behind 256."""
        runner = ModelRunner(self._checkpoint, 4096 // _SIZE + 32)
        pages = list(range(32, 32 + 4096 // _SIZE))
        states = [Block((token, MASKED, MASKED, MASKED)) for token in range(17)]
        far, near = (
            [Row(state, length // _SIZE, pages, writes_kv=False, sampling=SamplingParams()) for state in states]
            for length in (4096, 256)
        )

        def pair() -> tuple[float, float]:
            return self._seconds(partial(_run, runner, far)), self._seconds(partial(_run, runner, near))

        return _ratio("17 states behind 4096 tokens / behind 256", pair, 2.0, rounds)

    def _engine(self) -> Engine:
        return Engine(self._checkpoint, EngineConfig(kv_cache_tokens=16384, prefix_cache=False))

    def _running(self, requests: Sequence[GenerationRequest]) -> Engine:
        engine, waiting = self._engine(), {request.request_id for request in requests}
        for request in requests:
            engine.submit(request)
        while waiting:
            waiting -= {event.request_id for event in engine.step()}
        return engine

    def _prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._rng.choices(range(1000), k=length))

    def _seconds(self, run: Callable[[], object]) -> float:
        begin = self._clock()
        run()
        return self._clock() - begin


def _run(runner: ModelRunner, rows: list[Row]) -> None:
    runner.begin("backbone", rows)()


def _request(name: str, prompt: tuple[int, ...], tokens: int, mode: Static | None = None) -> GenerationRequest:
    return GenerationRequest(name, prompt, mode or Static(), max_new_tokens=tokens)


def _ratio(what: str, pair: Callable[[], tuple[float, float]], limit: float | None, rounds: int) -> Ratio:
    pairs = [pair() for _ in range(rounds + 1)][1:]
    milliseconds, compared = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
    return Ratio(what, milliseconds, compared, statistics.median(a / b for a, b in pairs), limit)


if __name__ == "__main__":
    run(command)
