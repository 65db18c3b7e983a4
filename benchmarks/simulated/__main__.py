"""`python -m benchmarks.simulated [WORLD …]`: compares `mrp_steps: "auto"`, or other plans, in simulated worlds."""

import re
import time
from typing import Annotated, Any

import typer

from benchmarks import options as cli
from benchmarks.simulated.play import Comparison, compare, compare_preset, demo
from benchmarks.simulated.random_worlds import random_world
from benchmarks.simulated.worlds import WORLDS, World
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative
from service.demo import CHECKPOINT
from service.engine.request import MeasuredMode
from service.errors import SettingsError
from service.quality.calibration.plans import parse_plan
from service.quality.presets import presets_of
from service.quality.schema import Plan, QualityName

_AUTO = "speculative mrp_steps=auto"


def command(
    world: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of the names of worlds, or 'random 17'. None: all, if there is no --random."),
    ] = None,
    plan: Annotated[list[str], typer.Option(help="A mode and its knobs; may be given again.")] = [_AUTO],  # noqa: B006
    preset: Annotated[
        QualityName | None, typer.Option(help="The demo's plans of this quality, in the place of plans.")
    ] = None,
    random: Annotated[int, typer.Option(min=0, help="The number of random worlds, from 'random 0' on.")] = 0,
    longer: Annotated[int, typer.Option(min=1, help="Each load lasts this many times as long.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the clock's noise.")] = 0,
    output: cli.OutputOption = None,
) -> None:
    """Compares plans with static and with fixed drafts, by the tokens per second of a simulated clock."""
    named = chosen(world or []) if world or not random else []
    worlds = [member.lengthened(longer) for member in (*named, *map(random_world, range(random)))]
    plans, rows = [parse_plan(text) for text in plan], list[dict[str, Any]]()
    cli.use_threads(1)
    with cli.Counter(len(worlds)) as counter:
        for member in worlds:
            begin = time.process_time()
            if preset is None:
                names, comparisons = [Plan.from_mode(mode).name for mode in plans], compare(member, plans, seed)
            else:
                names, comparisons = [preset], [compare_preset(member, _plans_of(preset), seed)]
            seconds = time.process_time() - begin
            for name, compared in zip(names, comparisons, strict=True):
                rows.append(_row(member, name, compared) | {"cpu_s": seconds})
            cli.write_rows(output, rows)
            counter.next(member.name)
    _print(rows)


def chosen(parts: list[str]) -> list[World]:
    """The worlds whose names have one of these parts, and the random worlds among the parts."""
    seeds = [int(match[1]) for part in parts if (match := re.fullmatch(r"random (\d+)", part))]
    parts = [part for part in parts if not re.fullmatch(r"random \d+", part)]
    if missing := [part for part in parts if not any(part in world.name for world in WORLDS)]:
        names = ", ".join(f"'{world.name}'" for world in WORLDS)
        raise SettingsError(f"world is {missing[0]!r}, allowed are 'random N' and parts of {names}", param="world")
    named = [world for world in WORLDS if not (parts or seeds) or any(part in world.name for part in parts)]
    return [*named, *map(random_world, seeds)]


def _plans_of(quality: QualityName) -> list[MeasuredMode]:
    presets = presets_of(CHECKPOINT, demo(8).config)
    return [MeasuredMode(plan.decoding_mode, plan.tokens_per_forward) for plan in presets.plans_for(quality, 0)]


def _row(world: World, plan: str, compared: Comparison) -> dict[str, Any]:
    forwards = compared.plan.forwards
    return {
        "world": world.name,
        "plan": plan,
        "static": compared.static.rate,
        "fixed": {_short(fixed): played.rate for fixed, played in compared.fixed.items()},
        "rate": compared.plan.rate,
        "times_static": compared.times_static,
        "times_best": compared.times_best,
        "times_static_by_load": compared.times_static_by_load,
        "steps_to_plan_by_load": [part.steps_to_plan for part in compared.plan.parts],
        "loads": [load.users for load in world.loads],
        "steps": forwards.backbone,
        "steps_in_turns": forwards.in_turns,
        "mrp_forwards": forwards.mrp,
        "same_answers": compared.same_answers,
    }


def _short(mode: DecodingMode) -> str:
    """MRP's forwards and the states of a tree; other plans by their names."""
    return f"{mode.mrp_steps}, {mode.max_drafts}" if isinstance(mode, Speculative) else Plan.from_mode(mode).name


def _print(rows: list[dict[str, Any]]) -> None:
    names = "world", "static", "fixed plans", "plan", "tokens/s", "times static", "times best"
    by_loads = "times static, by load", "steps to its plan, by load"
    lines = cli.table(*names, "in turns", *by_loads, "answers equal", "CPU s", plan="plan")
    for row in rows:
        fixed = "; ".join(f"{plan}: {rate:.0f}" for plan, rate in row["fixed"].items())
        by_load = [
            ", ".join(f"{users}: {value:{form}}" for users, value in zip(row["loads"], row[name], strict=True))
            for name, form in (("times_static_by_load", ".3f"), ("steps_to_plan_by_load", "d"))
        ]
        lines.add_row(
            *(row["world"], f"{row['static']:.0f}", fixed, row["plan"], f"{row['rate']:.0f}"),
            *(f"{row['times_static']:.3f}", f"{row['times_best']:.3f}"),
            f"{row['steps_in_turns']} of {row['steps']}",
            *(by_load if len(row["loads"]) > 1 else ("", "")),
            *("yes" if row["same_answers"] else "no", f"{row['cpu_s']:.1f}"),
        )
    cli.results().print(lines)
    _print_ratios("times static", [row["times_static"] for row in rows])
    _print_ratios("times static, by load", [ratio for row in rows for ratio in row["times_static_by_load"]])
    _print_ratios("times best", [row["times_best"] for row in rows])


def _print_ratios(name: str, ratios: list[float]) -> None:
    ratios = sorted(ratios)
    least, twentieth, middle = (ratios[len(ratios) * part // 20] for part in (0, 1, 10))
    cli.results().print(f"{name}: {least:.3f} at least, {twentieth:.3f} in 95 %, {middle:.3f} in half of them")


if __name__ == "__main__":
    cli.run(command)
