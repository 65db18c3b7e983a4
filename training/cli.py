"""`mrp-serve train-mrp`: trains an MRP module on a file of conversations, for a backbone of any family but I-DLM."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.cli.options import BlockSizeOption, DeviceOption, ThreadsOption, use_threads, with_fields
from service.cli.output import Counter, notes, results, table

if TYPE_CHECKING:
    from training.config import TrainingConfig
    from training.losses import Weights
    from training.recipes import Recipe
    from training.session import Start, Watcher
    from training.trainer import Report

#: seconds between two looks at the log of other processes
_LOOK_S = 0.5


def _above_zero(value: float | None) -> float | None:
    if value is not None and value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0")
    return value


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """The options for which a recipe has values, by the names of its fields. None keeps the recipe's value."""

    layers: Annotated[int | None, typer.Option(min=1, help="Depth of the module.")] = None
    unroll: Annotated[
        int | None, typer.Option(min=1, help="Consecutive applications of MRP that are trained in the last phase.")
    ] = None
    trajectories: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of batches with the backbone's own decodes; the others have noise."),
    ] = None
    next_pick: Annotated[float | None, typer.Option(min=0, help="Extra weight of the backbone's next pick.")] = None
    order: Annotated[float | None, typer.Option(min=0, help="Weight of the order loss, for `speculative`.")] = None
    revision: Annotated[float | None, typer.Option(min=0, help="Weight of the revision loss, for `remask`.")] = None
    reveals: Annotated[
        int | None, typer.Option(min=1, help="Noise: the most tokens of a block that are revealed at once.")
    ] = None
    copies: Annotated[int | None, typer.Option(min=1, help="States of one example in a forward.")] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Most examples per forward.")] = None
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens per forward: fewer examples if they are long.")
    ] = None
    accumulate: Annotated[int | None, typer.Option(min=1, help="Forwards of a worker per update.")] = None
    lr: Annotated[float | None, typer.Option(callback=_above_zero, help="Peak learning rate.")] = None
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a conversation; longer ones are cut.")
    ] = None
    window: Annotated[
        int | None, typer.Option(min=1, help="Target tokens of one example; longer answers are split.")
    ] = None

    def over(self, recipe: Recipe) -> Recipe:
        """The recipe with the values of the options."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(recipe, **{name: value for name, value in values.items() if value is not None})


@with_fields("options", RecipeOptions)
def command(
    backbone: Annotated[
        str, typer.Option(help="Checkpoint of any family but I-DLM: a folder, or a hub name: owner/name@revision.")
    ],
    data: Annotated[
        Path, typer.Option(help="JSONL: `messages`, or `prompt` and `completion`, or `text` on every line.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the result. A training that it contains is resumed.")],
    options: RecipeOptions,
    recipe: Annotated[
        Literal["default", "published"],
        typer.Option(help="Values of the options that are not given: the best measured ones, or the MRP paper's."),
    ] = "default",
    steps: Annotated[int, typer.Option(min=1, help="Total number of updates.")] = 2000,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct", help="MRP predicts the logits themselves, not their change. The mode `direct` does not need it."
        ),
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share an update, by Ray Train.")] = 1,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Updates to the peak. Default: a tenth, at most 150; published: 3 %.")
    ] = None,
    clip: Annotated[float, typer.Option(callback=_above_zero, help="Largest norm of the gradient.")] = 1.0,
    fp32: Annotated[bool, typer.Option("--fp32", help="No bfloat16 in the losses' matrix products.")] = False,
    heldout: Annotated[float, typer.Option(min=0, max=0.5, help="Share of the lines kept for the evaluation.")] = 0.05,
    judged: Annotated[int, typer.Option(min=1, help="The most held-out batches evaluated at the end.")] = 8,
    save_every: Annotated[int, typer.Option(min=1, help="Updates between two saved states.")] = 100,
    seed: Annotated[
        int, typer.Option(help="Seed of the module's weights, of the examples' order and of the noise.")
    ] = 0,
    block_size: BlockSizeOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Trains an MRP module for a frozen backbone of any family but I-DLM. The folder can be served at once."""
    from service.model import resolve
    from service.model.device import pick_device
    from training.config import Budget, Keeping, Module, Source, TrainingConfig
    from training.recipes import RECIPES

    values = options.over(RECIPES[recipe])
    source = Source(
        str(resolve(backbone).absolute()), data.absolute(), block_size, values.max_length, values.window, heldout
    )
    budget = Budget(
        steps,
        rows=values.batch,
        batches=values.accumulate * workers,
        seed=seed,
        bf16=not fp32,
        clip=clip,
        tokens=values.batch_tokens,
        matrices=values.matrices,
    )
    keeping, module = Keeping(out.absolute(), save_every, judged), Module(values.layers, not direct)
    plan = TrainingConfig(source, values.objective, values.schedule(steps, warmup), budget, keeping, module)
    picked = pick_device(device)
    use_threads(threads)
    with _goes_on(plan), watched(plan) as watcher:
        if workers == 1:
            _alone(plan, picked, watcher)
        else:
            from training.workers import train_together

            with _following(plan, watcher):
                train_together(plan, picked, workers, threads)
    _say_result(plan)


def _alone(plan: TrainingConfig, device: str, watcher: Watcher) -> None:
    from training.chat_codec import ChatCodec
    from training.session import train
    from training.trainer import Team

    train(plan, ChatCodec.load, device, Team(), watcher)


@contextmanager
def _goes_on(plan: TrainingConfig) -> Iterator[None]:
    """Prints, after an interruption, how the training can be resumed."""
    try:
        yield
    except KeyboardInterrupt:
        every = f"which is written every {plan.keeping.save_every} updates"
        notes().print(f"interrupted; the same command resumes from the last state, {every}")
        raise typer.Exit(130) from None


@contextmanager
def watched(plan: TrainingConfig) -> Iterator[Watcher]:
    """A watcher that counts the updates. It shows nothing before the first one, since the data may be invalid."""
    from training.session import Watcher

    with ExitStack() as stack:
        counters: list[Counter] = []

        def counter(done: int) -> Counter:
            if not counters:
                counters.append(stack.enter_context(Counter(plan.budget.steps, done)))
            return counters[0]

        def started(start: Start) -> None:
            notes().print(described(start), markup=False, soft_wrap=True)
            counter(start.step)

        def updated(report: Report) -> None:
            share = (report.step - 1) / plan.budget.steps
            counter(report.step - 1).reach(report.step, losses(report, plan.objective.phase(share).weights))

        yield Watcher(started, updated)


@contextmanager
def _following(plan: TrainingConfig, watcher: Watcher) -> Iterator[None]:
    """Passes the updates that other processes write into the log to the watcher."""
    from training.state import latest

    over = threading.Event()

    def follow() -> None:
        seen = None
        while not over.wait(_LOOK_S):
            report = latest(plan.keeping.out / "training")
            if report and report != seen:
                watcher.update(report)
                seen = report

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def described(start: Start) -> str:
    """The corpus, the module and the state of a run, in one line."""
    corpus = start.corpus
    words = [
        f"{corpus.lines} lines: {len(corpus.train)} examples to train on, {len(corpus.heldout)} held out",
        f"MRP has {start.parameters / 1e6:.2f} M parameters",
    ]
    if corpus.cut:
        words.append(f"{corpus.cut} lines were too long and are cut (--max-length)")
    if start.step:
        words.append(f"resumes after update {start.step}")
    return "; ".join(words)


def losses(report: Report, weights: Weights) -> str:
    """The losses of an update that are on, in one line. KL and order are one sum."""
    order = f" + {weights.order:g} order" if weights.order else ""
    revision = f"  revision {report.revision:.4f}" if weights.revision else ""
    return f"K={report.applications} KL{order} {report.chain:.4f}{revision}"


def _say_result(plan: TrainingConfig) -> None:
    file = plan.keeping.out / "heldout.json"
    if file.is_file():
        scores = json.loads(file.read_text(encoding="utf-8"))
        rows = table("held out", "KL", "drafts that hold", "tokens/forward")
        for name, score in scores.items():
            cells = [" ".join(f"{value:.3f}" for value in score[key]) for key in ("divergence", "accepted")]
            rows.add_row("MRP" if name == "mrp" else name, *cells, f"{score['tokens_per_forward']:.3f}")
        results().print(rows)
    out = plan.keeping.out
    print(f"to publish it, read {out / 'README.md'}, which may quote prompts of the data, then:")
    print(f"  hf upload OWNER/{out.name} {out} . --exclude 'training/*'")
    print(f"done: mrp-serve serve {out}")
