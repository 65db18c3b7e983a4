"""`python -m benchmarks.batch`: `mrp-serve batch` beside the engine alone, on the same held-out problems.

The engine alone has its requests as token ids, all at once, in this process. Both have the same limits and no prefix
cache. Rounds are interleaved and ratios are of one round, because machines are shared.
"""

import asyncio
import json
import os
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
from benchmarks.options import Counter, OutputOption, heldout, results, run, table, use_threads, write_rows
from service.batch.answers import LineAnswers
from service.batch.journal import Journal
from service.batch.lines import BatchFile
from service.batch.replicas import BatchReplicas
from service.demo import Problem
from service.engine import Engine, GenerationRequest
from service.engine.observer import SafeObserver
from service.engine_process.core import load_core
from service.model.device import pick_device
from service.quality.calibration.plans import parse_plan
from service.quality.schema import Plan
from service.settings.settings import Settings, torch_threads
from service.text import TextCodec


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the tokens of the answers, and the seconds of both.

    `engine_cpu_s`: CPU time of the engine alone. `batch_engine_cpu_s`, `program_cpu_s`: of the batch's two processes.
    """

    tokens: int
    engine_s: float
    engine_cpu_s: float
    batch_s: float
    batch_engine_cpu_s: float
    program_cpu_s: float

    @property
    def ratio(self) -> float:
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
    settings = Settings(max_num_seqs=max_running, enable_prefix_caching=False)
    os.environ["MRP_SERVE_TORCH_THREADS"] = str(threads)
    use_threads(threads)
    engine = load_core(settings, SafeObserver(None)).engine
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
    cpu_ratio = statistics.median(each.batch_engine_cpu_s / each.engine_cpu_s for each in measured)
    program = 1e3 * statistics.median(each.program_cpu_s for each in measured) / lines
    rows = table("", "tokens/s", "of the engine's", "CPU of its engine", "CPU ms/line beside it")
    rate = f"{tokens / statistics.median(each.engine_s for each in measured):,.0f}"
    rows.add_row("engine alone", rate, "1.00", "1.00", "")
    rate = f"{tokens / statistics.median(each.batch_s for each in measured):,.0f}"
    rows.add_row("batch", rate, f"{ratio:.3f}", f"{cpu_ratio:.3f}", f"{program:.2f}")
    results().print(rows)
    content = {
        "machine": machine_name(torch.device(pick_device(settings.device))),
        "plan": plan,
        "lines": lines,
        "max_running": max_running,
        "ratio": ratio,
        "rounds": [asdict(each) for each in measured],
    }
    write_rows(output, content)


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
            engine_turn = asyncio.to_thread(_alone, engine, requests, torch_threads())
            batch_turn = _batched(LineAnswers(replicas, settings), folder, number)
            if number % 2:
                batched, alone = await batch_turn, await engine_turn
            else:
                alone, batched = await engine_turn, await batch_turn
            if alone[0] != batched[0]:
                raise AssertionError(f"the engine has {alone[0]} tokens, the batch {batched[0]}")
            _, seconds, cpu = alone
            measured.append(Round(batched[0], seconds, cpu, *batched[1:]))
            counter.next(f"{measured[-1].ratio:.3f}")
    replicas.close()
    return measured[1:]


def _alone(engine: Engine, requests: Sequence[GenerationRequest], threads: int | None) -> tuple[int, float, float]:
    use_threads(threads)  # of this thread
    begin, cpu = time.perf_counter(), time.thread_time()
    completions = engine.generate(requests)
    seconds, cpu = time.perf_counter() - begin, time.thread_time() - cpu
    return sum(len(completion.token_ids) for completion in completions), seconds, cpu


async def _batched(answers: LineAnswers, folder: Path, number: int) -> tuple[int, float, float, float]:
    """The tokens and seconds of a batch, and the CPU seconds of its engine and of this process."""
    begin, engine_cpu, program_cpu = time.perf_counter(), _cpu_of_children(), time.process_time()
    with Journal(folder / f"out-{number}.jsonl") as journal:
        await answers.run(BatchFile(folder / "in.jsonl"), journal.write)
    seconds = time.perf_counter() - begin
    return answers.tokens, seconds, _cpu_of_children() - engine_cpu, time.process_time() - program_cpu


def _cpu_of_children() -> float:
    """The CPU seconds of the processes that this process has started. Linux only."""
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    stats = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in " ".join(lists).split()]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run(command)
