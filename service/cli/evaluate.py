"""`mrp-serve eval`: accuracy, tokens per forward and time of every mode on the demo's held-out problems."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from service.cli.options import Device, Dtype, Model, Output, Threads, heldout, load, use_threads
from service.cli.output import Counter, results, table
from service.cli.plans import parse_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from service.bench.evaluation import Plan, Score, Task
    from service.demo import Problem
    from service.text import TextCodec


def command(
    model: Model = None,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems, drawn without repetition.")] = 300,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as 'speculative mrp_steps=4'; may be given again. With `zero` at the end, MRP's output is set"
            " to 0. With `block`, MRP sees only the block, as in the published loops. With `int8`, `fp8` or `w8a8`, the"
            " layers' matrices are kept so. Default: all."
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="JSON lines whose `prompt` is continued instead. No accuracy is measured then.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    together: Annotated[int, typer.Option(min=1, help="Requests decoded together.")] = 8,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of problems and of sampling.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    draft_candidates: Annotated[
        int | None, typer.Option(min=0, help="Tokens from which a draft is chosen. 0: the whole vocabulary.")
    ] = None,
    output: Output = None,
) -> None:
    """Measures accuracy, tokens per forward and time of every mode, with MRP and with its output set to zero."""
    from service.bench.evaluation import evaluate
    from service.bench.grid import default_plans
    from service.bench.prompts import read_prompts
    from service.bench.variants import block_only
    from service.engine import Engine, EngineConfig, SamplingParams
    from service.model.quantization import QUANT_SCHEMES

    given = [_plan(text) for text in plan or ()]
    asked: Sequence[Any] = read_prompts(text).lines if text else heldout(problems, "problems", seed)
    use_threads(threads)
    checkpoint = load(model, device, dtype, None)
    plans = given or default_plans(with_mrp=checkpoint.mrp is not None)
    # Every plan decodes the same prompts. Without the prefix cache, every plan pays for them.
    limits = EngineConfig(prefix_cache=False, draft_candidates=draft_candidates)
    engines, used = {"mrp": Engine(checkpoint, limits)}, {plan.engine for plan in plans}
    if "zero" in used:
        engines["zero"] = Engine(load(model, device, dtype, None, zero_mrp=True), limits)
    if "block" in used:
        engines["block"] = Engine(block_only(checkpoint), limits)
    for form in used & QUANT_SCHEMES.keys():
        engines[form] = Engine(load(model, device, dtype, None, quantization=form), limits)
    tasks = _continuations(checkpoint.path, asked) if text else _tasks(checkpoint.path, asked)
    limits_of_all = (max_new_tokens, together)
    with Counter(len(tasks) * len(plans)) as counter:
        for latest in evaluate(engines, tasks, plans, SamplingParams(temperature, seed=seed), limits_of_all):
            scores, done = latest, [len(score.completions) for score in latest]
            counter.reach(sum(done), f"answers; {min(done)} of {len(tasks)} prompts by every plan")
            if output and min(done) == max(done):
                output.write_text(json.dumps([_row(score) for score in scores], indent=1) + "\n", encoding="utf-8")
    results().print(_table(scores))


def _plan(text: str) -> Plan:
    """Parses `mode knob=value …`, with the engine's name at the end if it is not `mrp`."""
    from service.bench.evaluation import Plan
    from service.model.quantization import QUANT_SCHEMES

    plan, _, last = text.rpartition(" ")
    return Plan(parse_plan(plan), last) if last in {"zero", "block", *QUANT_SCHEMES} else Plan(parse_plan(text))


def _tasks(path: Path, problems: Sequence[Problem]) -> list[Task]:
    from service.bench.evaluation import Task
    from service.text import TextCodec

    codec, tasks = TextCodec.load(path), []
    for problem in problems:
        ids = codec.encode_chat([{"role": "user", "content": problem.prompt}])
        tasks.append(Task(tuple(ids), partial(_is_right, problem, codec)))
    return tasks


def _continuations(path: Path, lines: Sequence[Mapping[str, Any]]) -> list[Task]:
    """One task for every line of a file."""
    from service.bench.evaluation import Task
    from service.text import TextCodec

    codec = TextCodec.load(path)
    return [Task(tuple(codec.encode(line["prompt"]))) for line in lines]


def _is_right(problem: Problem, codec: TextCodec, answer: tuple[int, ...]) -> bool:
    return problem.check(codec.decode(answer))


def _row(score: Score) -> dict[str, Any]:
    count = len(score.completions)
    return {
        "plan": score.plan.name,
        "engine": score.plan.engine,
        "problems": count,
        "accuracy": score.accuracy,
        "tokens_per_forward": score.tokens_per_forward,
        "tokens_per_published_forward": score.tokens_per_published_forward,
        "milliseconds_per_token": score.milliseconds_per_token,
        "tokens_per_cpu_second": score.tokens_per_cpu_second,
        "same_as_first_plan": score.same_as_first,
        "acceptance": score.acceptance,
    }


def _table(scores: list[Score]) -> Table:
    shown = table("mode", "engine", "accuracy", "tokens/forward", "ms/token", "same as first", "accepted", plan="mode")
    for score in scores:
        plain = score.plan.engine == "mrp" and not score.plan.params.needs_mrp
        accuracy = "-" if score.accuracy is None else f"{score.accuracy:.3f}"
        accepted = "-" if score.acceptance is None else f"{score.acceptance:.2f}"
        same = f"{score.same_as_first}/{len(score.completions)}"
        shown.add_row(
            score.plan.name, "-" if plain else score.plan.engine, accuracy, f"{score.tokens_per_forward:.2f}",
            f"{score.milliseconds_per_token:.2f}", same, accepted,
        )  # fmt: skip
    return shown
