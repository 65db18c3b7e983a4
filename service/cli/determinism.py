"""`mrp-serve determinism`: how often a batch changes an answer, and the cost of the setting `deterministic`."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from service.cli.options import Device, Model, Output, Several, Threads, heldout, load, use_threads
from service.cli.output import Counter, results, table

if TYPE_CHECKING:
    from service.bench.determinism import Differences, Price
    from service.engine import Engine
    from service.model import Checkpoint


def command(
    model: Model = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts; each is decoded at three temperatures.")] = 100,
    dtype: Annotated[list[str], typer.Option(help="Data types; repeatable.")] = ["float32", "bfloat16"],  # noqa: B006
    concurrency: Several = [1, 8, 32],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=0, help="Interleaved rounds that measure the cost; 0: none.")] = 5,
    device: Device = "auto",
    threads: Threads = None,
    output: Output = None,
) -> None:
    """Counts answers that a batch changes, without and with `deterministic`, and measures what the setting costs."""
    from service.model.options import pick_device, pick_dtype

    place = pick_device(device)
    for name in dtype:
        pick_dtype(name, place)
    if model is None:
        heldout(prompts, "prompts", seed=0)
    use_threads(threads)
    counts: list[tuple[str, bool, Differences]] = []
    costs: list[tuple[str, Price]] = []
    for name in dtype:
        found, price = _measure(load(model, device, name, None), prompts, concurrency, rounds)
        counts += [(name, *differences) for differences in found]
        costs += [(name, row) for row in price]
    results().print(_counts_table(counts), *([_price_table(costs)] if costs else []), sep="\n")
    if output:
        result = {
            "differences": [{"dtype": name, "deterministic": on} | asdict(row) for name, on, row in counts],
            "price": [{"dtype": name} | asdict(row) for name, row in costs],
        }
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _measure(
    checkpoint: Checkpoint, prompts: int, concurrency: list[int], rounds: int
) -> tuple[list[tuple[bool, Differences]], list[Price]]:
    """The differences without and with `deterministic`, and the cost of the setting."""
    from service.bench.determinism import answers_to, count_differences, prices
    from service.bench.rounds import Rounds
    from service.bench.speed import Workload
    from service.decode.modes import Speculative, Static
    from service.engine import Engine, EngineConfig

    free, fixed = (Engine(checkpoint, EngineConfig(deterministic=on, prefix_cache=False)) for on in (False, True))
    asked, dtype = _prompts(free, checkpoint.path, prompts), str(checkpoint.dtype).removeprefix("torch.")
    workloads = [Workload(Static()), *([Workload(Speculative(2))] if checkpoint.mrp else [])]
    differences = []
    with Counter(2 * answers_to(free, asked)) as counter:
        for on, engine in ((False, free), (True, fixed)):
            what = f"answers in {dtype}, {'deterministic' if on else 'not deterministic'}"
            count = count_differences(engine, asked, answered=partial(counter.next, what))
            differences.append((on, count))
    if not rounds:
        return differences, []
    with Counter(rounds * len(concurrency) * len(workloads)) as counter:
        beside = Rounds(concurrency, rounds, lambda what: counter.next(f"rounds of the price in {dtype}, {what}"))
        return differences, list(prices((free, fixed), workloads, beside))


def _prompts(engine: Engine, path: Path, count: int) -> list[tuple[int, ...]]:
    """The prompts: held-out problems for the demo, random tokens for any other checkpoint."""
    from service.bench.determinism import random_prompts
    from service.demo import CHECKPOINT
    from service.text import TextCodec

    if path.resolve() == Path(CHECKPOINT).resolve():
        codec = TextCodec.load(path)
        asked = [[{"role": "user", "content": problem.prompt}] for problem in heldout(count, "prompts", seed=0)]
        return [tuple(codec.encode_chat(messages)) for messages in asked]
    return random_prompts(engine, count)


def _counts_table(counts: list[tuple[str, bool, Differences]]) -> Table:
    shown = table("dtype", "deterministic", "batch differs from alone", "speculative from static")
    for name, on, row in counts:
        shown.add_row(
            name, "yes" if on else "no", f"{row.differing} of {row.requests}", f"{row.broken} of {row.drafted}"
        )
    return shown


def _price_table(costs: list[tuple[str, Price]]) -> Table:
    shown = table("dtype", "mode", "concurrent", "tok/s", "deterministic", "ratio")
    for name, row in costs:
        rates = f"{row.free:,.0f}", f"{row.fixed:,.0f}", f"{row.ratio:.2f}"
        shown.add_row(name, row.mode, str(row.concurrency), *rates)
    return shown
