"""`mrp-serve bench`: the engine compared with the plain published loop, the time of a step, the prefix cache."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from service.cli.options import (
    Attention,
    BlockSize,
    Device,
    Dtype,
    Model,
    Output,
    Several,
    Shape,
    Threads,
    load_in_shape,
    use_threads,
)
from service.cli.output import Counter, results, table

if TYPE_CHECKING:
    from service.bench.prefix import PrefixTime
    from service.bench.speed import SpeedRow
    from service.bench.steps import StepTime

_Rows = Annotated[list[int], typer.Option(min=1, help="Rows of a step; may be given again.")]


def command(
    model: Model = None,
    shape: Shape = None,
    concurrency: Several = [1, 8, 32],  # noqa: B006
    rows: _Rows = [1, 2, 4, 8, 16, 32, 64],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 5,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every completion.")] = 64,
    prefix_tokens: Annotated[int, typer.Option(min=0, help="Tokens before the rows of a step.")] = 256,
    prompt_tokens: Annotated[list[int], typer.Option(min=1, help="Prompt lengths; repeatable.")] = [64, 256, 1000],  # noqa: B006
    device: Device = "auto",
    dtype: Dtype = "auto",
    attention: Attention = "auto",
    block_size: BlockSize = None,
    threads: Threads = None,
    output: Output = None,
) -> None:
    """Measures tokens per second beside a transformers loop, steps over their floor, and prefix cache savings."""
    from service.bench.floor import measure_rates
    from service.bench.machine import machine_name
    from service.bench.plain_loop import plain_loop_of
    from service.bench.prefix import possible_lengths, prefix_times
    from service.bench.rounds import Rounds
    from service.bench.speed import Workload, compare_with_plain_loop
    from service.bench.steps import Platform, step_times
    from service.decode.modes import Static
    from service.engine import Engine, EngineConfig

    use_threads(threads)
    checkpoint = load_in_shape(model, shape, device, dtype, block_size)
    workload = Workload(Static(), new_tokens=new_tokens)
    tokens = max(concurrency) * workload.longest(checkpoint.config.block_size)
    engine = Engine(checkpoint, EngineConfig(max_running=max(concurrency), kv_cache_tokens=tokens, attention=attention))
    parts = len(concurrency) * rounds + len(rows) + len(possible_lengths(checkpoint, prompt_tokens))
    with Counter(parts) as counter:
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
    results().print(_speed_table(speed), what, _step_table(steps), _prefix_table(prefix), sep="\n")
    if output:
        result: dict[str, Any] = {"machine": machine_name(checkpoint.device), "shape": shape, "rates": asdict(rates)}
        result["speed"] = [asdict(row) for row in speed]
        result["steps"] = [asdict(step) | {"step": step.step, "ratio": step.ratio} for step in steps]
        result["prefix"] = [asdict(time) for time in prefix]
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _speed_table(speed: list[SpeedRow]) -> Table:
    shown = table("concurrent", "engine tok/s", "plain loop tok/s", "ratio")
    for row in speed:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        shown.add_row(str(row.concurrency), _rate(row.engine), _rate(row.plain), ratio)
    return shown


def _rate(tokens: float | None) -> str:
    """Large models on a CPU make less than a token a second. None: transformers has no network of the family."""
    if tokens is None:
        return "-"
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:.2f}"


def _step_table(steps: list[StepTime]) -> Table:
    shown = table(
        "rows", "context", "step ms", "floor ms", "step / floor", "bound by", "host ms", "backbone ms", "MRP ms"
    )
    for step in steps:
        times = f"{step.step:.2f}", f"{step.floor:.2f}", f"{step.ratio:.2f}", step.bound, f"{step.host:.2f}"
        mrp = "-" if step.mrp is None else f"{step.mrp:.2f}"
        shown.add_row(str(step.rows), str(step.context), *times, f"{step.backbone:.2f}", mrp)
    return shown


def _prefix_table(times: list[PrefixTime]) -> Table:
    shown = table("prompt", "first block ms: no cache", "first time", "again")
    for time in times:
        shown.add_row(str(time.prompt_tokens), f"{time.without:.2f}", f"{time.first:.2f}", f"{time.again:.2f}")
    return shown
