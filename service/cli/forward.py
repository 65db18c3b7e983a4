"""`mrp-serve forward`: the cost of forwards with long prompts or mixed lengths, compared with transformers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from service.cli.options import Threads, use_threads


def command(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 5,
    threads: Threads = None,
    output: Annotated[Path | None, typer.Option(help="Writes the rows as JSON.")] = None,
) -> None:
    """Compares forwards with random weights: long prompts, mixed lengths, prompts beside decoding, many states."""
    from service.bench.forward import ratios

    use_threads(threads)
    with Console(stderr=True).status("measuring …"):
        rows = list(ratios(rounds))
    table = Table("what", "ms", "compared with", "ratio", "wanted", box=None, pad_edge=False)
    for row in rows:
        wanted = "" if row.wanted is None else f"≤ {row.wanted:.2f}"
        table.add_row(row.what, f"{row.milliseconds:,.1f}", f"{row.compared:,.1f}", f"{row.ratio:.2f}", wanted)
    Console().print(table)
    if output:
        output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
