"""`mrp-serve predict`: how fast a published shape would be on a GPU that is not here."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from service.cli.options import BlockSize, Model, Output, Several, heldout, load, use_threads
from service.cli.output import Counter, results, table
from service.cli.plans import parse_plan
from service.errors import SettingsError

if TYPE_CHECKING:
    from service.bench.prediction import PredictedSpeed

_PLANS = [
    "static",
    "dynamic threshold=0.9",
    "direct mrp_steps=2",
    "remask threshold=0.5",
    "speculative mrp_steps=2",
    "speculative mrp_steps=2 max_drafts=4",
    "speculative mrp_steps=auto",
]


def command(
    shape: Annotated[str, typer.Option(help="Published shape: qwen3-0.6b, sdar-1.7b, sdar-4b, sdar-8b, sdar-30b-a3b.")],
    gpu: Annotated[str, typer.Option(help="rtx-4090, l40s, a100-80gb, h100 or h200, by its data sheet.")],
    model: Model = None,
    concurrency: Several = [1, 8, 32, 128],  # noqa: B006
    plan: Annotated[list[str], typer.Option(help="A mode and its knobs; may be given again.")] = _PLANS,
    block_size: BlockSize = None,
    context: Annotated[int, typer.Option(min=0, help="Tokens that a row reads besides its own.")] = 256,
    above_floor: Annotated[float, typer.Option(min=1, help="A forward's time over the least that it can take.")] = 1.25,
    forward_us: Annotated[float, typer.Option(min=0, help="Microseconds to start and read a forward.")] = 200,
    request_us: Annotated[float, typer.Option(min=0, help="The host's microseconds a request and step.")] = 20,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems that are decoded.")] = 256,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a plan, at least.")] = 24,
    output: Output = None,
) -> None:
    """Predicts the speed of a published shape on a GPU from bytes and operations. Measures nothing.

    The demo decodes its problems, so tokens per forward are the demo's. Each of its forwards has the shape's price.
    This takes minutes. For a quick look: --concurrency 1 --plan static --plan "speculative mrp_steps=auto".
    """
    from service.bench.loads import Workload
    from service.bench.prediction import GPUS, Assumptions, Prices, predict
    from service.bench.shapes import config_in_shape, shape_named
    from service.text import TextCodec

    if gpu not in GPUS:
        raise SettingsError(f"gpu is {gpu!r}, allowed are {', '.join(GPUS)}", param="gpu")
    sizes, plans = shape_named(shape), [parse_plan(text) for text in plan]
    chats = [[{"role": "user", "content": problem.prompt}] for problem in heldout(problems, "problems", seed=1)]
    use_threads(None)
    checkpoint = load(model, "cpu", "float32", block_size)
    codec = TextCodec.load(checkpoint.path)
    workload = Workload([tuple(codec.encode_chat(chat)) for chat in chats], fewest=requests)
    assumed = Assumptions(above_floor, 1e-6 * forward_us, 1e-6 * request_us, context=context)
    prices = Prices(config_in_shape(checkpoint, sizes), GPUS[gpu], assumed)
    rows = list[dict[str, Any]]()
    with Counter(len(concurrency) * len(plans)) as counter:
        for together in concurrency:
            first: PredictedSpeed | None = None
            for made in predict(checkpoint, workload, plans, together, prices):
                first = first or made
                rows.append(_row(made, first) | {"shape": shape, "gpu": gpu, "assumed": asdict(assumed)})
                counter.next(f"{together} together, {rows[-1]['plan']}")
    if output:
        output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    results().print(_table(rows))


def _row(made: PredictedSpeed, first: PredictedSpeed) -> dict[str, Any]:
    from service.bench.evaluation import Plan

    return {
        "concurrency": made.concurrency,
        "plan": Plan(made.params).name,
        "tokens_per_forward": made.tokens_per_forward,
        "rows": made.rows,
        "refines": made.refines,
        "step_ms": made.step_ms,
        "tokens_per_second": made.tokens_per_second,
        "times_first": made.tokens_per_second / first.tokens_per_second,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    names = ("together", "plan", "tokens/forward", "rows/forward", "MRP/forward", "step ms", "tokens/s", "times first")
    shown = table(*names, plan="plan")
    for row in rows:
        shown.add_row(
            str(row["concurrency"]),
            row["plan"],
            f"{row['tokens_per_forward']:.2f}",
            f"{row['rows']:.1f}",
            f"{row['refines']:.2f}",
            f"{row['step_ms']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['times_first']:.2f}",
        )
    return shown
