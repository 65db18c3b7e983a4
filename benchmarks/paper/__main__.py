"""`python -m benchmarks.paper`: the paper's tables on any checkpoint, with the paper's numbers beside ours.

Every row decodes the same problems greedily. The rows of a chunk of problems follow each other, so a slow hour of the
machine hits all of them. The tables in the folder of the result are written after every chunk. Answers are kept there;
the same command goes on after an interruption.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import options as cli
from benchmarks.paper.decoders import EngineDecoder
from benchmarks.paper.published import BLOCK_SIZE
from benchmarks.paper.records import Chunk, Record, Records
from benchmarks.paper.report import Result, results_of, table_of, titles, write_plots, write_tables
from benchmarks.paper.rows import Row, rows_for
from benchmarks.paper.tasks import Problem, Task, tasks_named

#: problems of a chunk, for each request at once
_CHUNK = 4


@cli.with_fields("options", cli.ModelOptions)
def command(
    options: cli.ModelOptions,
    tasks: Annotated[str, typer.Option(help="Comma-separated.")] = "gsm8k,math500,humaneval,mbpp",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Problems of each task, the first ones. Default: all.")
    ] = None,
    run_code: Annotated[
        bool,
        typer.Option("--run-code", help="Runs code of answers in a sandbox. Without it such tasks have no accuracy."),
    ] = False,
    row: Annotated[
        list[str] | None, typer.Option(help="Such as 'direct mrp_steps=1'; may be given again. Default: all rows.")
    ] = None,
    together: Annotated[
        list[int], typer.Option("--concurrency", min=1, help="Requests at once; may be given again.")
    ] = [16, 1],  # noqa: B006
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 4096,
    data: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder with TASK.jsonl, read instead of the hub.")
    ] = None,
    threads: cli.ThreadsOption = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the result.")] = Path("paper"),
) -> None:
    """Measures accuracy, tokens per forward and tokens a second of the paper's rows and of ours."""
    problems = {
        task: task.problems(limit, data, run_code=run_code)
        for task in tasks_named([name for name in tasks.split(",") if name])
    }
    cli.use_threads(threads)
    decoders = _engines(options, max_new_tokens)
    model = decoders[0].model
    about = {"model": model, "limit": limit, "max_new_tokens": max_new_tokens}
    about |= {"run_code": run_code, "machine": platform.processor() or platform.machine(), "threads": threads}
    about |= decoders[0].loading
    out.mkdir(parents=True, exist_ok=True)
    records = Records(out / "answers.jsonl", about)
    plan = {decoder: _chunks(decoder, problems, row or (), together) for decoder in decoders}
    rows = rows_for(row or (), has_mrp=True, block_size=128)

    def so_far() -> list[Result]:
        return results_of(model, rows, records.by_chunk.values())

    is_complete = _measure(plan, problems, records, lambda: write_tables(out, about, so_far()))
    made = so_far()
    write_tables(out, about, made)
    write_plots(out, made)
    _print(made, out)
    if not is_complete:
        cli.notes().print("interrupted; run the same command again to resume")
        raise typer.Exit(130)


def _engines(options: cli.ModelOptions, max_new_tokens: int) -> list[EngineDecoder]:
    """Engines with the checkpoint's block size, or the operator's, and with the paper's."""
    decoders = [EngineDecoder(options, None, max_new_tokens)]
    if options.block_size is None and decoders[0].block_size != BLOCK_SIZE:
        decoders.append(EngineDecoder(options, BLOCK_SIZE, max_new_tokens))
    return decoders


def _chunks(
    decoder: EngineDecoder, problems: Mapping[Task, Sequence[Problem]], names: Sequence[str], together: Sequence[int]
) -> list[tuple[Chunk, Row]]:
    """All chunks of a decoder. The rows of one chunk of problems follow each other."""
    rows = rows_for(names, has_mrp=decoder.has_mrp, block_size=decoder.block_size)
    return [
        (Chunk(decoder.block_size, count, task.name, row.name, start), row)
        for count in dict.fromkeys(together)
        for task, listed in problems.items()
        for start in range(0, len(listed), _CHUNK * count)
        for row in rows
    ]


def _measure(
    plan: Mapping[EngineDecoder, Sequence[tuple[Chunk, Row]]],
    problems: Mapping[Task, Sequence[Problem]],
    records: Records,
    report: Callable[[], None],
) -> bool:
    """Decodes and judges the chunks that have no record yet. Returns false if it is interrupted.

    `report` is called after all rows of a chunk of problems.
    """
    by_name = {task.name: listed for task, listed in problems.items()}
    total = sum(map(len, plan.values()))
    missing = {decoder: [job for job in chunks if job[0] not in records.by_chunk] for decoder, chunks in plan.items()}
    try:
        with cli.Counter(total, total - sum(map(len, missing.values()))) as counter:
            for decoder, jobs in missing.items():
                for (*_, start), rows in groupby(jobs, lambda job: job[0]._replace(row="")):
                    for chunk, row in rows:
                        listed = by_name[chunk.task][start : start + _CHUNK * chunk.together]
                        records.add(_decoded(decoder, chunk, row, listed))
                        counter.next(f"{chunk.task} from {start}, {chunk.together} at once, {chunk.row}")
                    report()
                decoder.release()
    except KeyboardInterrupt:
        return False
    return True


def _decoded(decoder: EngineDecoder, chunk: Chunk, row: Row, problems: Sequence[Problem]) -> Record:
    answers, seconds = decoder.decode([problem.prompt for problem in problems], row, chunk.together)
    right = [_is_right(problem, answer.text) for problem, answer in zip(problems, answers, strict=True)]
    return Record(chunk, answers, right, seconds)


@cache
def _is_right(problem: Problem, text: str) -> bool | None:
    """Whether an answer is right. Rows with equal answers share the judgement. None: its code is not run."""
    return None if problem.judge is None else problem.judge(text)


def _print(made: Sequence[Result], out: Path) -> None:
    for title, rows in titles(made):
        columns, cells = table_of(rows)
        lines = cli.table(*columns, plan="row")
        for row in cells:
            lines.add_row(*row)
        cli.results().print(f"\n{title}", lines, sep="\n")
    cli.results().print(f"written: {out}/paper.json, paper.md and plots", soft_wrap=True)


if __name__ == "__main__":
    cli.run(command, "benchmarks.paper")
