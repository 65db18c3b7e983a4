"""`mrp-serve calibrate` and `mrp-serve frontier`: plans over prompts at several loads, one measurement for both.

`frontier` shows what was measured. `calibrate` also chooses the plans for `lossless`, `balanced` and `fast`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from service.cli.options import (
    DeviceOption,
    DtypeOption,
    ModelOption,
    OutputOption,
    QuantizationOption,
    RanksOption,
    ThreadsOption,
    ranks_of,
    use_threads,
)
from service.cli.output import Counter, notes
from service.cli.quality import show
from service.errors import SettingsError

if TYPE_CHECKING:
    from service.calibration.measure import Calibration
    from service.calibration.records import Notebook
    from service.model import Checkpoint
    from service.quality.schema import QualityFile

#: requests together, if the command line names no number
LOADS = (1, 8, 32)

PromptsOption = Annotated[
    Path | None,
    typer.Option(help="JSON lines with `prompt` and, if the scorer needs it, `answer`. Default for the demo: its own."),
]
ScorerOption = Annotated[
    str | None,
    typer.Option(
        "--scorer", help="demo, exact, contains, number, regex:PATTERN or module:function. Default for the demo: demo."
    ),
]
PlansOption = Annotated[
    list[str] | None,
    typer.Option("--plan", help="Such as 'dynamic threshold=0.5'; may be given again. Default: a grid."),
]
CountOption = Annotated[int | None, typer.Option(min=1, help="Number of prompts, from the first on. Default: all.")]
ConcurrencyOption = Annotated[
    list[int] | None,
    typer.Option(
        "--concurrency",
        min=1,
        help="Concurrent requests, at most half of --timed; may be given again. Default: 1, 8 and 32.",
    ),
]
TimedOption = Annotated[
    int,
    typer.Option(min=2, help="Timed prompts, at least twice --concurrency. Lossless plans answer only these prompts."),
]
NewTokensOption = Annotated[int, typer.Option("--max-new-tokens", min=1)]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Continue prompts as plain text instead of sending them as chats.")
]


def calibrate(
    model: ModelOption = None,
    prompts: PromptsOption = None,
    scorer: ScorerOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Default: quality.json (quality.int8.json, …) in the checkpoint's folder.")
    ] = None,
    plan: PlansOption = None,
    count: CountOption = None,
    concurrency: ConcurrencyOption = None,
    timed: TimedOption = 256,
    max_new_tokens: NewTokensOption = 256,
    raw: RawOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    quantization: QuantizationOption = None,
    threads: ThreadsOption = None,
    tensor_parallel_size: RanksOption = 1,
) -> None:
    """Measures the frontier, chooses presets for every load and writes quality.json. Run it again to resume."""
    from service.quality.schema import file_name, write_quality

    def target(checkpoint: Checkpoint) -> Path:
        return out or checkpoint.path / file_name(checkpoint.config.quantization, checkpoint.activation_parts)

    options = MeasurementOptions(model, prompts, scorer, plan, count, concurrency, timed, max_new_tokens, raw)
    where = DeviceOptions(device, dtype, quantization, threads, tensor_parallel_size)
    with measured(options, where, target) as (file, path):
        write_quality(file, cast("Path", path))
    show(file)


def frontier(
    model: ModelOption = None,
    prompts: PromptsOption = None,
    scorer: ScorerOption = None,
    plan: PlansOption = None,
    count: CountOption = None,
    concurrency: ConcurrencyOption = None,
    timed: TimedOption = 256,
    max_new_tokens: NewTokensOption = 256,
    raw: RawOption = False,
    output: OutputOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    quantization: QuantizationOption = None,
    threads: ThreadsOption = None,
    tensor_parallel_size: RanksOption = 1,
) -> None:
    """Shows accuracy and speed of every plan at several loads. With --output, run it again to resume."""
    options = MeasurementOptions(model, prompts, scorer, plan, count, concurrency, timed, max_new_tokens, raw)
    where = DeviceOptions(device, dtype, quantization, threads, tensor_parallel_size)
    with measured(options, where, lambda _: output) as (file, path):
        if path:
            content = file.model_dump(include={"measured", "rows"})
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    show(file)


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """What is measured: plans over prompts at several loads. None: the default of the option."""

    model: str | None
    prompts: Path | None
    scorer: str | None
    plans: Sequence[str] | None
    count: int | None
    concurrency: Sequence[int] | None
    timed: int
    max_new_tokens: int
    raw: bool


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The devices on which it is measured."""

    device: str
    dtype: str
    quantization: str | None
    threads: int | None
    ranks: int


#: the file that a measurement will be written to, known when the checkpoint is; None: nothing is written
Target = Callable[["Checkpoint"], Path | None]


@contextmanager
def measured(
    options: MeasurementOptions, where: DeviceOptions, target: Target
) -> Iterator[tuple[QualityFile, Path | None]]:
    """The measurement as a calibration file, and its target. With a target it can be interrupted and goes on later.

    The records beside the target are removed when the block has ended without an error. SettingsError for options that
    make no sense, before anything is loaded.
    """
    from service.calibration.measure import Calibration, Scope, circumstances, engine_for
    from service.calibration.pareto import assemble
    from service.calibration.plans import default_plans, parse_plan, with_static_first
    from service.calibration.prompts import check_lines, find_scorer, read_prompts, tasks_of
    from service.quality.presets import identity_of
    from service.text import TextCodec

    path_of_prompts, scorer_name = prompts_of(options.model, options.prompts, options.scorer)
    lines, scorer = read_prompts(path_of_prompts, options.count), find_scorer(scorer_name)
    check_lines(scorer, lines.lines)
    together = tuple(sorted(set(options.concurrency or LOADS)))
    scope = Scope(together, min(options.timed, len(lines.lines)), options.max_new_tokens)
    scope.check(len(lines.lines))
    named = [parse_plan(text) for text in options.plans or ()]
    use_threads(where.threads, where.ranks)
    with ranks_of(where.ranks, options.model, where.device, where.dtype, None, where.quantization) as (
        checkpoint,
        deps,
    ):
        config = checkpoint.config
        plans = with_static_first(named) if named else default_plans(config.block_size, has_mrp=config.mrp is not None)
        tasks = tasks_of(TextCodec.load(checkpoint.path), lines.lines, scorer, raw=options.raw)
        calibration = Calibration(engine_for(checkpoint, tasks, scope, deps), tasks, plans, scope)
        about_prompts = {"prompts_sha256": lines.sha256, "scorer": scorer_name, "prompts": len(tasks)}
        how = circumstances(checkpoint, scope, about_prompts)
        identity = identity_of(checkpoint.path, config, checkpoint.activation_parts)
        about = {"measured": how.model_dump(exclude={"at"}), "checkpoint": identity.model_dump()}
        path = target(checkpoint)
        with _notebook(path, about | {"plans": calibration.plan_names}) as notebook:
            _run(calibration, notebook)
            yield assemble(identity, how, calibration.rows(notebook, how.clock)), path


def prompts_of(model: str | None, prompts: Path | None, scorer: str | None) -> tuple[Path, str]:
    """The file of prompts and the name of the scorer. The demo has its own."""
    from service.demo import CHECKPOINT
    from service.demo.problems import HELDOUT_FILE

    is_demo = model is None or Path(model).resolve() == CHECKPOINT.resolve()
    if not is_demo and (prompts is None or scorer is None):
        missing = "prompts" if prompts is None else "scorer"
        raise SettingsError(f"{missing} is missing; only the demo has a default", param=missing)
    return prompts or HELDOUT_FILE, scorer or "demo"


@contextmanager
def _notebook(target: Path | None, about: Mapping[str, Any]) -> Iterator[Notebook]:
    """The results so far, in a file beside `target`. The file is removed once `target` is written."""
    from service.calibration.records import Notebook

    try:
        notebook = Notebook(target and target.with_name(target.name + ".partial"), about)
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}; choose another path", param="out") from None
    yield notebook
    notebook.remove()


def _run(calibration: Calibration, notebook: Notebook) -> None:
    try:
        with Counter(len(calibration.jobs)) as counter:
            for job in calibration.run(notebook):
                counter.next(f"{job.together} together, {job.plan}")
    except KeyboardInterrupt:
        notes().print("interrupted; run the same command again to resume")
        raise typer.Exit(130) from None
