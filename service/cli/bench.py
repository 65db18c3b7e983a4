"""`mrp-serve bench`: the engine beside the plain published loop, interleaved, medians and ratio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from service.cli.options import BlockSize, Device, Dtype, Model, Threads, load, use_threads


def command(
    model: Model = None,
    concurrency: Annotated[list[int], typer.Option(help="Concurrent requests; may be given again.")] = [1, 8, 32],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 5,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every completion.")] = 64,
    device: Device = "auto",
    dtype: Dtype = "auto",
    block_size: BlockSize = None,
    threads: Threads = None,
    output: Annotated[Path | None, typer.Option(help="Writes the rows as JSON.")] = None,
) -> None:
    """Static decoding by the engine and by a plain transformers loop, tokens per second and ratio."""
    from service.bench.plain_loop import PlainLoop
    from service.bench.speed import Workload, compare_with_plain_loop
    from service.decode.params import Static
    from service.engine import Engine, EngineConfig

    use_threads(threads)
    checkpoint = load(model, device, dtype, block_size)
    engine = Engine(checkpoint, EngineConfig(max_running=max(concurrency)))
    workload = Workload(Static(), new_tokens=new_tokens)
    table = Table("concurrent", "engine tok/s", "plain loop tok/s", "ratio", box=None)
    rows, console = [], Console()
    with console.status("decoding …"):
        for row in compare_with_plain_loop(engine, PlainLoop(checkpoint), workload, concurrency, rounds):
            table.add_row(str(row.concurrency), f"{row.engine:,.0f}", f"{row.plain:,.0f}", f"{row.ratio:.2f}")
            rows.append({"concurrency": row.concurrency, "engine": row.engine, "plain": row.plain, "ratio": row.ratio})
    console.print(table)
    if output:
        output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
