"""`mrp-serve calibrate` chooses presets by a measurement, `frontier` shows one, `quality` an earlier calibration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.options import ModelOptions, OutputOption, RanksOption, use_threads, with_fields
from service.cli.output import Counter, notes, results, table
from service.errors import CheckpointError, SettingsError

if TYPE_CHECKING:
    from service.model import Checkpoint
    from service.quality.calibration.measure import Calibration
    from service.quality.calibration.prompts import Prompts, Scorer
    from service.quality.calibration.records import Notebook
    from service.quality.schema import Measured, PlanResult, QualityFile

#: temperatures above 0, if the command line names none
TEMPERATURES = (0.1, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class Measurement(ModelOptions):
    """The options of a measurement: plans over prompts, and the devices. None: a default."""

    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines with `prompt` and, if the scorer needs it, `answer`. Default for the demo: its own."
        ),
    ] = None
    scorer: Annotated[
        str | None,
        typer.Option(
            help="demo, exact, contains, number, regex:PATTERN or module:function. Default for the demo: demo."
        ),
    ] = None
    plan: Annotated[
        list[str] | None,
        typer.Option(help="Such as 'dynamic threshold=0.5'; may be given again. Default: a grid."),
    ] = None
    count: Annotated[int | None, typer.Option(min=1, help="Number of prompts, from the first on. Default: all.")] = None
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=100,
            help="Temperatures of further measurements of accuracy; may be given again. 0 alone: none. Default: 0.1,"
            " 0.7 and 1.",
        ),
    ] = None
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as plain text instead of sending them as chats.")
    ] = False
    tensor_parallel_size: RanksOption = 1


@with_fields("measurement", Measurement)
def calibrate(
    measurement: Measurement,
    out: Annotated[
        Path | None, typer.Option(help="Default: quality.json (quality.w8a8.json, …) in the checkpoint's folder.")
    ] = None,
) -> None:
    """Measures accuracies, chooses the plans of presets and writes quality.json. Run it again to resume."""
    from service.quality.schema import file_name, write_quality

    def target(checkpoint: Checkpoint) -> Path:
        return out or checkpoint.path / file_name(checkpoint.config.quantization, checkpoint.activation_parts)

    _measure(measurement, target, write_quality)


@with_fields("measurement", Measurement)
def frontier(measurement: Measurement, out: OutputOption = None) -> None:
    """Shows accuracy and tokens per forward of every plan. With --out, run it again to resume."""

    def write(file: QualityFile, path: Path) -> None:
        content = file.model_dump(include={"measured", "rows"})
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    _measure(measurement, lambda _: out, write)


def _measure(
    options: Measurement, target: Callable[[Checkpoint], Path | None], write: Callable[[QualityFile, Path], None]
) -> None:
    """Measures, writes the calibration file to the checkpoint's `target`, if it has one, and shows it.

    Records beside the target let an interrupted measurement go on. SettingsError before anything is loaded.
    """
    from service.quality.calibration.measure import Calibration, Scope, circumstances, engine_for
    from service.quality.calibration.pareto import assemble
    from service.quality.calibration.plans import default_plans, parse_plan, with_lossless_first
    from service.quality.calibration.prompts import tasks_of
    from service.quality.presets import identity_of
    from service.text import TextCodec

    lines, scorer = _prompts(options)
    temperatures = sorted({*(options.temperature or TEMPERATURES)} - {0.0})
    scope = Scope(options.max_new_tokens, tuple(temperatures))
    chosen = [parse_plan(text) for text in options.plan or ()]
    use_threads(None, options.tensor_parallel_size)
    with options.ranks(options.tensor_parallel_size) as (checkpoint, deps):
        config = checkpoint.config
        tasks = tasks_of(TextCodec.load(checkpoint.path), lines.lines, scorer, raw=options.raw)
        default = default_plans(config.block_size, has_mrp=config.mrp is not None, causal=config.causal)
        plans = with_lossless_first(chosen) if chosen else default
        calibration = Calibration(engine_for(checkpoint, tasks, scope, deps), tasks, plans, scope)
        about = {"prompts_sha256": lines.sha256, "scorer": options.scorer or "demo", "prompts": len(tasks)}
        how = circumstances(checkpoint, scope, about)
        identity = identity_of(checkpoint.path, config, checkpoint.activation_parts)
        about = {"measured": how.model_dump(exclude={"at"}), "checkpoint": identity.model_dump()}
        path = target(checkpoint)
        notebook = _run(calibration, path, about | {"plans": calibration.plan_names})
        file = assemble(identity, how, calibration.rows(notebook))
        if path:
            write(file, path)
            notebook.remove()
    show(file)


def _prompts(options: Measurement) -> tuple[Prompts, Scorer]:
    """The prompts and their scorer. The demo has its own."""
    from service.demo import CHECKPOINT, HELDOUT_FILE
    from service.quality.calibration.prompts import check_lines, find_scorer, read_prompts

    is_demo = options.model is None or Path(options.model).resolve() == CHECKPOINT.resolve()
    if not is_demo and (options.prompts is None or options.scorer is None):
        missing = "prompts" if options.prompts is None else "scorer"
        raise SettingsError(f"{missing} is missing; only the demo has a default", param=missing)
    lines, scorer = read_prompts(options.prompts or HELDOUT_FILE, options.count), find_scorer(options.scorer or "demo")
    check_lines(scorer, lines.lines)
    return lines, scorer


def _run(calibration: Calibration, target: Path | None, about: Mapping[str, Any]) -> Notebook:
    """The results, which are in a file beside `target`, too."""
    from service.quality.calibration.records import Notebook

    try:
        notebook = Notebook(target and target.with_name(f"{target.name}.partial"), about)
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}; choose another path", param="out") from None
    try:
        with Counter(len(calibration.jobs)) as counter:
            for job in calibration.run(notebook):
                counter.next(f"temperature {job.temperature:g}, {job.plan}")
    except KeyboardInterrupt:
        notes().print("interrupted; run the same command again to resume")
        raise typer.Exit(130) from None
    return notebook


# --- the table --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """The model, or the file of its calibration."""

    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A folder, a hub name or a file. Default: the demo.")
    ] = None


@with_fields("calibrated", _Calibrated)
def quality(calibrated: _Calibrated) -> None:
    """Shows a checkpoint's plans for lossless, balanced and fast, and every plan that was measured."""
    from service.demo import CHECKPOINT
    from service.quality.presets import HOW_TO_MAKE
    from service.quality.schema import FILE_NAME, read_quality

    path = Path(calibrated.model or CHECKPOINT)
    if not path.is_file():
        from service.model import resolve

        folder = resolve(path)
        path = folder / FILE_NAME
        if not path.is_file():
            raise CheckpointError(f"{folder} has no {FILE_NAME}; {HOW_TO_MAKE}")
    show(read_quality(path))


def show(file: QualityFile) -> None:
    """Prints the table, the presets and the warnings."""
    from service.quality.presets import in_words

    console, frontier = results(), file.frontier
    sampled = [f"at {temperature:g}" for temperature in file.measured.temperatures[1:]]
    columns = ("accuracy", "from static", *sampled, "identical", "tok/forward", "frontier")
    plans = table("plan", *columns, plan="plan")
    for row in sorted(file.rows, key=lambda row: -row.tokens_per_forward):
        plans.add_row(*_cells(row, file.measured), "yes" if row in frontier else "")
    console.print(plans)
    for name, preset in file.presets.items():
        console.print(f"{name}: {in_words(preset)}")
        if (sampled_preset := file.sampled_presets[name]) != preset:
            console.print(f"{name} at a temperature: {in_words(sampled_preset)}")
    console.print(file.measured.how, style="dim")
    for warning in file.warnings:
        console.print(f"warning: {warning}", style="yellow")


def _cells(row: PlanResult, measured: Measured) -> list[str]:
    at = {result.temperature: f"{100 * result.difference:+.1f}" for result in row.sampled}
    sampled = ["as static" if row.lossless else at.get(value, "-") for value in measured.temperatures[1:]]
    away = 100 * max(row.difference_high - row.difference, row.difference - row.difference_low)
    accuracy = f"{row.accuracy:.3f} [{row.accuracy_low:.3f}, {row.accuracy_high:.3f}]"
    difference = "as static" if row.lossless else f"{100 * row.difference:+.1f} ±{away:.1f}"
    counts = [f"{row.identical}/{row.prompts}", f"{row.tokens_per_forward:.2f}"]
    return [row.plan.name, accuracy, difference, *sampled, *counts]
