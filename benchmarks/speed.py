"""`python -m benchmarks.speed`: the engine beside the plain published loop, the time of a step, the prefix cache.

The prefix cache is timed by the first block of a prompt: without it, new to it, and known. The three are interleaved
and medians reported, because machines are shared. The prompts are random, so they share nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer
from rich.table import Table

from benchmarks import options as cli
from benchmarks.machine import machine_name, measure_rates
from benchmarks.steps import Platform, StepTime, step_times
from benchmarks.throughput import RandomWorkload, Rounds, SpeedRow, compare_with_plain_loop
from service.decode.modes import Static
from service.engine import Engine, EngineConfig, GenerationRequest
from service.model import Checkpoint
from service.model.files import display_name


@cli.with_fields("options", cli.ModelOptions)
def command(
    options: cli.ModelOptions,
    shape: cli.ShapeOption = None,
    concurrency: cli.SeveralOption = [1, 8, 32],  # noqa: B006
    rows: Annotated[list[int], typer.Option(min=1, help="Rows of a step; repeatable.")] = [1, 2, 4, 8, 16, 32, 64],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 5,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every completion.")] = 64,
    prefix_tokens: Annotated[int, typer.Option(min=0, help="Tokens before the rows of a step.")] = 256,
    prompt_tokens: Annotated[list[int], typer.Option(min=1, help="Prompt lengths; repeatable.")] = [64, 256, 1000],  # noqa: B006
    attention: cli.AttentionOption = "auto",
    threads: cli.ThreadsOption = None,
    output: cli.OutputOption = None,
) -> None:
    """Measures tokens per second beside a transformers loop, steps over their floor, and prefix cache savings."""
    from benchmarks.plain_loop import plain_loop_of

    cli.use_threads(threads)
    checkpoint = cli.load_in_shape(options, shape)
    workload = RandomWorkload(Static(), new_tokens=new_tokens)
    tokens = max(concurrency) * workload.longest(checkpoint.config.block_size)
    engine = Engine(checkpoint, EngineConfig(max_running=max(concurrency), kv_cache_tokens=tokens, attention=attention))
    parts = len(concurrency) * rounds + len(rows) + len(possible_lengths(checkpoint, prompt_tokens))
    with cli.Counter(parts) as counter:
        beside = Rounds(concurrency, rounds, counter.next)
        speed = list(compare_with_plain_loop(engine, plain_loop_of(checkpoint), workload, beside))
        del engine  # and its cache
        steps, prefix, rates = [], [], measure_rates(checkpoint.device, checkpoint.dtype)
        for step in step_times(checkpoint, rows, prefix_tokens, rounds, Platform(rates, attention)):
            steps.append(step)
            counter.next(f"a step of {step.rows} rows")
        for time in prefix_times(checkpoint, prompt_tokens, rounds, attention):
            prefix.append(time)
            counter.next(f"the first block behind {time.prompt_tokens} tokens")
    measured = f"{rates.bytes_per_s / 1e9:,.0f} GB/s, {rates.flops_per_s / 1e9:,.0f} GFLOP/s"
    what = f"{machine_name(checkpoint.device)}: {measured} in {checkpoint.dtype}, measured"
    cli.results().print(_speed_table(speed), what, _step_table(steps), _prefix_table(prefix), sep="\n")
    content = {
        "machine": machine_name(checkpoint.device),
        "shape": shape,
        "rates": asdict(rates),
        "model": display_name(checkpoint.path),
        "speed": [asdict(row) for row in speed],
        "steps": [asdict(step) | {"step": step.step, "ratio": step.ratio} for step in steps],
        "prefix": [asdict(time) for time in prefix],
    }
    cli.write_rows(output, content)


def _speed_table(speed: list[SpeedRow]) -> Table:
    rows = cli.table("concurrent", "engine tok/s", "plain loop tok/s", "ratio")
    for row in speed:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        rows.add_row(str(row.concurrency), _rate(row.engine), _rate(row.plain), ratio)
    return rows


def _rate(tokens: float | None) -> str:
    """Large models on a CPU make less than a token a second. None: transformers has no network of the family."""
    if tokens is None:
        return "-"
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:.2f}"


def _step_table(steps: list[StepTime]) -> Table:
    rows = cli.table(
        "rows", "context", "step ms", "floor ms", "step / floor", "bound by", "host ms", "backbone ms", "MRP ms"
    )
    for step in steps:
        times = f"{step.step:.2f}", f"{step.floor:.2f}", f"{step.ratio:.2f}", step.bound, f"{step.host:.2f}"
        mrp = "-" if step.mrp is None else f"{step.mrp:.2f}"
        rows.add_row(str(step.rows), str(step.context), *times, f"{step.backbone:.2f}", mrp)
    return rows


def _prefix_table(times: list[PrefixTime]) -> Table:
    rows = cli.table("prompt", "first block ms: no cache", "first time", "again")
    for time in times:
        rows.add_row(str(time.prompt_tokens), f"{time.without:.2f}", f"{time.first:.2f}", f"{time.again:.2f}")
    return rows


@dataclass(frozen=True, slots=True)
class PrefixTime:
    """Medians in milliseconds to the first block of a prompt: without a cache, the first time, and again."""

    prompt_tokens: int
    without: float
    first: float
    again: float


def possible_lengths(checkpoint: Checkpoint, lengths: Sequence[int]) -> list[int]:
    """The lengths of prompts that are measured: each once, cut to the model's limit."""
    size = checkpoint.config.block_size
    longest = checkpoint.config.max_positions // size * size - size
    return sorted({min(length, longest) for length in lengths})


def prefix_times(
    checkpoint: Checkpoint, lengths: Sequence[int], rounds: int, attention: str = "auto"
) -> Iterator[PrefixTime]:
    """One request alone, its first block revealed in one forward, at every one of the possible lengths."""
    possible = possible_lengths(checkpoint, lengths)
    tokens = 4 * (possible[-1] + 2 * checkpoint.config.block_size)
    limits = EngineConfig(kv_cache_tokens=tokens, attention=attention)
    plain, caching = (Engine(checkpoint, replace(limits, prefix_cache=on)) for on in (False, True))
    size = checkpoint.config.block_size
    for length in possible:
        workload, rows = RandomWorkload(Static(size), (length, length), size, seed=length), []
        for number in range(rounds + 1):  # the first round warms up
            [request] = workload.requests(plain, 1, number)
            rows.append([_first_block_ms(engine, request) for engine in (plain, caching, caching)])
        yield PrefixTime(length, *(statistics.median(column) for column in zip(*rows[1:], strict=True)))


def _first_block_ms(engine: Engine, request: GenerationRequest) -> float:
    [completion] = engine.generate([request])
    return 1e3 * (completion.stats.first_block_s or 0.0)


if __name__ == "__main__":
    cli.run(command)
