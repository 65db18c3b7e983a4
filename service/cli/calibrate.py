"""`mrp-serve calibrate`: finds a checkpoint's plans for `lossless`, `balanced` and `fast` by measuring on prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.options import Device, Dtype, Model, Quantization, Ranks, Threads, ranks_of, use_threads
from service.cli.output import Counter, notes
from service.cli.plans import parse_plan
from service.cli.quality import draw, drawer, show
from service.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from service.bench.calibration import Calibration, Scope, Task
    from service.bench.records import Notebook
    from service.bench.rows import Clock
    from service.bench.scorers import Scorer
    from service.decode.params import ModeParams
    from service.engine import Parts
    from service.model import Checkpoint
    from service.quality.schema import Measured
    from service.text import TextCodec

_HOW = {
    "cpu": "tokens a second of CPU time of one thread; other work on the machine does not change it",
    "wall": "tokens a second of wall-clock time; the machine must have no other work",
}


def command(
    model: Model = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines with `prompt` and, if the scorer needs it, `answer`. Default for the demo: its own."
        ),
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option(
            help="demo, exact, contains, number, regex:PATTERN or module:function. Default for the demo: demo."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Default: quality.json (quality.int8.json, …) in the checkpoint's folder.")
    ] = None,
    plan: Annotated[
        list[str] | None, typer.Option(help="Such as 'dynamic threshold=0.5'; may be given again. Default: a grid.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Number of prompts, from the first on. Default: all.")
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Concurrent requests, at most half of --timed; may be given again. Default: 1 and 16."
        ),
    ] = None,
    chosen_at: Annotated[
        int | None, typer.Option(help="The --concurrency whose speeds choose the presets. Default: the largest.")
    ] = None,
    timed: Annotated[
        int,
        typer.Option(
            min=2, help="Timed prompts, at least twice --concurrency. Lossless plans answer only these prompts."
        ),
    ] = 128,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as plain text instead of sending them as chats.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draws the frontier into this folder.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantization: Quantization = None,
    threads: Threads = None,
    tensor_parallel_size: Ranks = 1,
) -> None:
    """Measures accuracy and speed of every mode and writes quality.json. Run it again to resume."""
    from service.bench.calibration import Calibration, Scope
    from service.bench.prompts import read_prompts
    from service.bench.scorers import check_lines, find_scorer
    from service.quality.assemble import assemble
    from service.quality.identity import identity_of
    from service.quality.schema import file_name, read_quality, write_quality

    file, judge = _asked(model, prompts, scorer)
    asked, scored_by = read_prompts(file, count), find_scorer(judge)
    check_lines(scored_by, asked.lines)
    together = tuple(sorted(set(concurrency or (1, 16))))
    scope = Scope(together, min(timed, len(asked.lines)), max_new_tokens, chosen_at or together[-1])
    scope.check(len(asked.lines))
    given = [parse_plan(text) for text in plan or ()]
    if plot:
        drawer()
    use_threads(threads, tensor_parallel_size)
    with ranks_of(tensor_parallel_size, model, device, dtype, None, quantization) as (checkpoint, parts):
        plans = _plans(given, checkpoint)
        tasks = _tasks(checkpoint, asked.lines, scored_by, raw=raw)
        calibration = Calibration(_engine(checkpoint, tasks, scope, parts), tasks, plans, scope)
        about_prompts = {"prompts_sha256": asked.sha256, "scorer": judge, "prompts": len(tasks)}
        measured = _measured(checkpoint, scope, about_prompts)
        divided = checkpoint.activation_parts
        identity = identity_of(checkpoint.path, checkpoint.config, divided)
        target = out or checkpoint.path / file_name(checkpoint.config.quantization, divided)
        about = {"measured": measured.model_dump(exclude={"at"}), "checkpoint": identity.model_dump()}
        with _notebook(target, about | {"plans": calibration.plan_names}) as notebook:
            _run(calibration, notebook)
            write_quality(assemble(identity, measured, calibration.rows(notebook, measured.clock)), target)
    show(read_quality(target))
    if plot:
        draw(read_quality(target), plot)


def _asked(model: str | None, prompts: Path | None, scorer: str | None) -> tuple[Path, str]:
    """The file of prompts and the name of the scorer. The demo has its own."""
    from service.demo import CHECKPOINT
    from service.demo.problems import HELDOUT_FILE

    is_demo = model is None or Path(model).resolve() == CHECKPOINT.resolve()
    if not is_demo and (prompts is None or scorer is None):
        missing = "prompts" if prompts is None else "scorer"
        raise SettingsError(f"{missing} is missing; only the demo has a default", param=missing)
    return prompts or HELDOUT_FILE, scorer or "demo"


def _plans(given: list[ModeParams], checkpoint: Checkpoint) -> list[ModeParams]:
    """The given plans, or the default grid. Static comes first: the others are compared with it."""
    from service.bench.grid import grid
    from service.decode.modes import Static

    if not given:
        return grid(checkpoint.config.block_size, has_mrp=checkpoint.mrp is not None)
    return [Static(), *(plan for plan in dict.fromkeys(given) if plan != Static())]


def _tasks(checkpoint: Checkpoint, lines: Sequence[Mapping[str, Any]], scorer: Scorer, *, raw: bool) -> list[Task]:
    from service.bench.calibration import Task
    from service.text import TextCodec

    codec = TextCodec.load(checkpoint.path)
    encode = codec.encode if raw or not codec.has_chat_template else _chat(codec)
    return [Task(tuple(encode(line["prompt"])), partial(_is_right, codec, scorer, line)) for line in lines]


def _chat(codec: TextCodec) -> Callable[[str], list[int]]:
    return lambda text: codec.encode_chat([{"role": "user", "content": text}])


def _is_right(codec: TextCodec, scorer: Scorer, line: Mapping[str, Any], answer: tuple[int, ...]) -> bool:
    return bool(scorer(line, codec.decode(answer)))


def _engine(checkpoint: Checkpoint, tasks: Sequence[Task], scope: Scope, parts: Parts) -> Any:
    """An engine with pages for the longest prompts at the highest concurrency.

    It has no prefix cache, so that every plan pays for its prefill.
    """
    from service.engine import Engine, EngineConfig

    longest = max(len(task.prompt_token_ids) for task in tasks) + scope.max_new_tokens
    tokens = max(scope.concurrency) * (longest + 2 * checkpoint.config.block_size)
    limits = EngineConfig(max(scope.concurrency), kv_cache_tokens=tokens, prefix_cache=False)
    return Engine(checkpoint, limits, parts=parts)


def _measured(checkpoint: Checkpoint, scope: Scope, asked: Mapping[str, Any]) -> Measured:
    import torch

    from service.quality.schema import Measured

    device, threads = checkpoint.device, torch.get_num_threads()
    alone = device.type == "cpu" and threads == 1 and checkpoint.shard.size == 1
    clock: Clock = "cpu" if alone else "wall"
    return Measured(
        at=datetime.now(UTC).date().isoformat(),
        model=checkpoint.path.resolve().name,
        max_new_tokens=scope.max_new_tokens,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        threads=threads,
        clock=clock,
        concurrency=list(scope.concurrency),
        chosen_at=scope.chosen_at,
        how=f"{_HOW[clock]}; prefill included, plans in turns, {scope.timed} prompts; intervals are 95 %",
        **asked,
    )


@contextmanager
def _notebook(target: Path, about: Mapping[str, Any]) -> Iterator[Notebook]:
    """The results so far, in a file beside `target`. The file is removed once `target` is written."""
    from service.bench.records import Notebook

    try:
        notebook = Notebook(target.with_name(target.name + ".partial"), about)
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
