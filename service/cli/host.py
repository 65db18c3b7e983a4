"""`mrp-serve host`: the CPU time of a step beside its forwards, and how late an event loop is beside the engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from service.cli.options import Device, Dtype, Model, Output, Several, load, use_threads
from service.cli.output import Counter, results, table
from service.cli.plans import parse_plan

_PLANS = [
    "static",
    "dynamic threshold=0.7",
    "sequential entropy_bound=0.1",
    "direct mrp_steps=2",
    "remask threshold=0.5",
    "speculative mrp_steps=2",
    "speculative mrp_steps=1 max_drafts=4",
    "speculative mrp_steps=auto",
]


def command(
    model: Model = None,
    concurrency: Several = [1, 8, 32, 128],  # noqa: B006
    plan: Annotated[list[str], typer.Option(help="A mode and its knobs; may be given again.")] = _PLANS,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a measurement; the median is reported.")] = 22,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds that the event loop is watched, for each plan.")] = 5,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Annotated[
        int,
        typer.Option(min=1, help="CPU threads for torch. With one, the times are CPU times of the engine's thread."),
    ] = 1,
    output: Output = None,
) -> None:
    """Measures the host's time per request and step, and how late an event loop is beside the engine."""
    from service.bench.delays import loop_delays
    from service.bench.host import HOST_COSTS, host_milliseconds
    from service.bench.machine import machine_name
    from service.engine.gil_and_gc import tune_interpreter

    plans = {text: parse_plan(text) for text in plan}
    use_threads(threads)
    checkpoint = load(model, device, dtype, None)
    tune_interpreter()
    rows = list[dict[str, Any]]()
    with Counter(len(plans) * (len(concurrency) + bool(seconds))) as counter:
        for text, params in plans.items():
            row: dict[str, Any] = {"plan": text, "machine": machine_name(checkpoint.device), "microseconds": {}}
            for requests in concurrency:
                milliseconds = host_milliseconds(checkpoint, requests, steps, params)
                row["microseconds"][requests] = 1e3 * milliseconds / requests
                counter.next(f"{text}, {requests} together")
            if seconds:
                row["late_ms"] = asdict(loop_delays(checkpoint, max(concurrency), params, seconds, HOST_COSTS))
                counter.next(f"{text}, event loop")
            rows.append(row)
    if output:
        output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    shown = table(
        "plan", *(f"µs, {count} together" for count in concurrency), "late ms: median", "99 %", "most", plan="plan"
    )
    for row in rows:
        late = row.get("late_ms", {})
        delays = [f"{late[name]:.1f}" if late else "" for name in ("median", "p99", "most")]
        shown.add_row(row["plan"], *(f"{one:.0f}" for one in row["microseconds"].values()), *delays)
    results().print(shown)
