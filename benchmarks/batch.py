"""`python -m benchmarks.batch`: `mrp-serve batch` beside the engine alone, on the same held-out problems.

The engine alone has its requests as token ids, all at once, in this process. The batch reads lines from a file, encodes
prompts, decodes in an engine's process, and writes answers. Both have the same limits and no prefix cache. Rounds are
interleaved and ratios are of one round, because machines are shared.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer

from benchmarks.machine import machine_name
from benchmarks.options import heldout, run
from service.batch.answers import LineAnswers
from service.batch.journal import Journal
from service.batch.lines import BatchFile
from service.batch.replicas import BatchReplicas
from service.calibration.plans import parse_plan
from service.cli.options import OutputOption, use_threads
from service.cli.output import Counter, results, table
from service.decode.block import Step
from service.demo import Problem
from service.engine import BlockEvent, Engine, GenerationRequest, StepReport
from service.model.device import pick_device
from service.quality.schema import Plan
from service.replica.core import load_core
from service.settings import Settings
from service.text import TextCodec


class _Silent:
    """An observer without work."""

    def on_step(self, report: StepReport) -> None:
        pass

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: Sequence[Step]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the tokens of the answers, and the seconds of both."""

    tokens: int
    engine_s: float
    batch_s: float

    @property
    def ratio(self) -> float:
        """The batch's rate divided by the engine's."""
        return self.engine_s / self.batch_s


def command(
    plan: Annotated[str, typer.Option(help="Mode and knobs.")] = "static",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 7,
    lines: Annotated[int, typer.Option(min=1, help="Lines of a round.")] = 256,
    max_running: Annotated[int, typer.Option(min=1, help="Requests that an engine decodes at once.")] = 64,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads for torch.")] = 1,
    output: OutputOption = None,
) -> None:
    """Compares the tokens per second of a batch with the engine's. One round more warms up."""
    chosen, problems = parse_plan(plan), heldout(min(lines, 512), seed=1)
    problems = [problems[index % len(problems)] for index in range(lines)]
    settings = Settings(max_running=max_running, torch_threads=threads, prefix_cache=False)
    use_threads(threads)
    engine = load_core(settings, _Silent()).engine
    codec = TextCodec.load(Path(settings.model))
    stops = frozenset(engine.model.eos_token_ids)
    requests = [
        GenerationRequest(str(index), tuple(codec.encode_message(problem.prompt)), chosen, stop_token_ids=stops)
        for index, problem in enumerate(problems)
    ]
    with Counter(rounds + 1) as counter:
        measured = asyncio.run(
            _measure(engine, requests, (settings, problems, Plan.from_mode(chosen)), rounds, counter)
        )
    ratio, tokens = statistics.median(each.ratio for each in measured), measured[0].tokens
    rows = table("", "tokens/s", "of the engine's")
    rows.add_row("engine alone", f"{tokens / statistics.median(each.engine_s for each in measured):,.0f}", "1.00")
    rows.add_row("batch", f"{tokens / statistics.median(each.batch_s for each in measured):,.0f}", f"{ratio:.3f}")
    results().print(rows)
    if output:
        circumstances = {
            "machine": machine_name(torch.device(pick_device(settings.device))),
            "plan": plan,
            "lines": lines,
            "max_running": max_running,
        }
        content = {**circumstances, "ratio": ratio, "rounds": [asdict(each) for each in measured]}
        output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


async def _measure(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    batch: tuple[Settings, Sequence[Problem], Plan],
    rounds: int,
    counter: Counter,
) -> list[Round]:
    settings, problems, plan = batch
    replicas = await BatchReplicas.start([settings])
    measured = list[Round]()
    with TemporaryDirectory() as name:
        folder = Path(name)
        body = {"mode": plan.mode, **plan.knobs}
        chats = [[{"role": "user", "content": problem.prompt}] for problem in problems]
        text = "".join(json.dumps({"messages": chat, **body}) + "\n" for chat in chats)
        (folder / "in.jsonl").write_text(text, encoding="utf-8")
        for number in range(rounds + 1):
            turns = [
                asyncio.to_thread(_alone, engine, requests, settings.torch_threads),
                _batched(replicas, folder, number),
            ]
            if number % 2:
                batched, alone = await turns[1], await turns[0]
            else:
                alone, batched = await turns[0], await turns[1]
            if alone[0] != batched[0]:
                raise AssertionError(f"the engine has {alone[0]} tokens, the batch {batched[0]}")
            measured.append(Round(alone[0], alone[1], batched[1]))
            counter.next(f"{measured[-1].ratio:.3f}")
    replicas.close()
    return measured[1:]


def _alone(engine: Engine, requests: Sequence[GenerationRequest], threads: int | None) -> tuple[int, float]:
    use_threads(threads)  # of this thread
    begin = time.perf_counter()
    completions = engine.generate(requests)
    return sum(len(completion.token_ids) for completion in completions), time.perf_counter() - begin


async def _batched(replicas: BatchReplicas, folder: Path, number: int) -> tuple[int, float]:
    begin = time.perf_counter()
    answers = LineAnswers(replicas, 600.0)
    with Journal(folder / f"out-{number}.jsonl") as journal:
        await answers.run(BatchFile(folder / "in.jsonl"), journal.write)
    seconds = time.perf_counter() - begin
    return answers.tokens, seconds


if __name__ == "__main__":
    run(command)
