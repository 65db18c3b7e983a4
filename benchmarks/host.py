"""`python -m benchmarks.host`: the CPU time of a step beside its forwards."""

from typing import Annotated, Any

import typer

from benchmarks import options as cli
from benchmarks.machine import machine_name
from benchmarks.steps import host_milliseconds
from service.ipc.connections import tune_interpreter
from service.model.files import display_name
from service.quality.calibration.plans import parse_plan

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


@cli.with_fields("options", cli.ModelOptions)
def command(
    options: cli.ModelOptions,
    concurrency: cli.SeveralOption = [1, 8, 32, 128],  # noqa: B006
    plan: Annotated[list[str], typer.Option(help="A mode and its knobs; may be given again.")] = _PLANS,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a measurement; the median is reported.")] = 22,
    threads: Annotated[
        int,
        typer.Option(min=1, help="CPU threads for torch. With one, the times are CPU times of the engine's thread."),
    ] = 1,
    output: cli.OutputOption = None,
) -> None:
    """Measures the host's time per request and step."""
    plans = {text: parse_plan(text) for text in plan}
    cli.use_threads(threads)
    checkpoint = options.load()
    tune_interpreter()
    rows = list[dict[str, Any]]()
    with cli.Counter(len(plans) * len(concurrency)) as counter:
        for text, mode in plans.items():
            row: dict[str, Any] = {"plan": text, "machine": machine_name(checkpoint.device), "microseconds": {}}
            row["model"] = display_name(checkpoint.path)
            for requests in concurrency:
                milliseconds = host_milliseconds(checkpoint, requests, steps, mode)
                row["microseconds"][requests] = 1e3 * milliseconds / requests
                counter.next(f"{text}, {requests} together")
            rows.append(row)
    cli.write_rows(output, rows)
    times = cli.table("plan", *(f"µs, {count} together" for count in concurrency), plan="plan")
    for row in rows:
        times.add_row(row["plan"], *(f"{time:.0f}" for time in row["microseconds"].values()))
    cli.results().print(times)


if __name__ == "__main__":
    cli.run(command)
