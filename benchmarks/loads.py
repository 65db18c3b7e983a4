"""`python -m benchmarks.loads`: compares `mrp_steps: "auto"` with static and with fixed drafts at several loads."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks import options as cli
from benchmarks.machine import machine_name
from benchmarks.throughput import PlanAtLoad, Rounds, Workload, compare_at_loads, encoded, parts, plans_at_load
from service.decode.modes import Static
from service.model.files import display_name
from service.quality.calibration.plans import parse_plan
from service.quality.schema import Plan
from service.text import TextCodec


@cli.with_fields("options", cli.ModelOptions)
def command(
    options: cli.ModelOptions,
    shape: cli.ShapeOption = None,
    concurrency: cli.SeveralOption = [1, 4, 16, 64],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 7,
    plan: Annotated[
        list[str] | None,
        typer.Option(help="Compared with static, such as 'speculative mrp_steps=auto'; may be given again."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems from which rounds draw.")] = 256,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a round, at least.")] = 48,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 96,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads for torch. With one, the CPU time is that of the forwards only.")
    ] = 1,
    output: cli.OutputOption = None,
) -> None:
    """Compares speculative decoding, with automatic and with fixed drafts, with static on the held-out problems."""
    chosen = [Static(), *(parse_plan(text) for text in plan)] if plan else None
    drawn = cli.heldout(problems, seed=1)
    cli.use_threads(threads)
    checkpoint = cli.load_in_shape(options, shape)
    workload = Workload(encoded(TextCodec.load(checkpoint.path), drawn), temperature, requests, new_tokens)
    plans, rows = chosen or plans_at_load(checkpoint.mrp is not None), list[dict[str, Any]]()
    circumstances = {"temperature": temperature, "shape": shape, "machine": machine_name(checkpoint.device)}
    circumstances["model"] = display_name(checkpoint.path)
    with cli.Counter(parts(plans, Rounds(concurrency, rounds))) as counter:
        for at_load in compare_at_loads(checkpoint, workload, plans, Rounds(concurrency, rounds, counter.next)):
            rows += [_row(plan, at_load[0]) | circumstances for plan in at_load]
            cli.write_rows(output, rows)
    cli.results().print(_table(rows))


def _row(plan: PlanAtLoad, static: PlanAtLoad) -> dict[str, Any]:
    cpu, wall = plan.times_faster(static)
    return {
        "concurrency": plan.concurrency,
        "plan": Plan.from_mode(plan.mode).name,
        "tokens_per_forward": plan.tokens_per_forward,
        "cpu_milliseconds_per_token": plan.milliseconds_per_token,
        "times_static_cpu": cpu,
        "times_static_wall": wall,
        "every_times_static_wall": plan.ratios(static),
        "rounds": len(plan.samples),
        "samples": [asdict(sample) for sample in plan.samples],
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    lines = cli.table(
        "concurrent", "plan", "tokens/forward", "ms/token (CPU)", "times static (CPU)", "(wall)", "range", plan="plan"
    )
    for row in rows:
        numbers = [f"{row[name]:.2f}" for name in list(row)[2:6]]
        every = row["every_times_static_wall"]
        lines.add_row(str(row["concurrency"]), row["plan"], *numbers, f"{min(every):.2f} to {max(every):.2f}")
    return lines


if __name__ == "__main__":
    cli.run(command)
