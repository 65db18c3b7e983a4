"""The result of each row: accuracy, tokens per forward, speed over static, the paper's numbers. JSON, table, plot."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.paper.decoders import Answer
from benchmarks.paper.published import PaperCell, paper_cell
from benchmarks.paper.rates import Pieces, ratio_of_rates
from benchmarks.paper.records import Record
from benchmarks.paper.rows import Row
from service.quality.calibration.records import proportion

COLUMNS = ("row", "accuracy", "paper", "tokens/forward", "tokens/s", "x static", "identical", "refused")


@dataclass(frozen=True, slots=True)
class Result:
    """A row's result on a task. Intervals are of 95 %. `identical`: answers that equal static's; None: not lossless.

    `accuracy`: None if code was not run. `speedup`: tokens a second over static's on the same problems; its interval
    needs two chunks. `refused`: prompts that are too long for the model; they count as wrong.
    """

    block_size: int
    together: int
    task: str
    row: str
    is_published: bool
    problems: int
    right: int | None
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    identical: int | None
    refused: int
    tokens: int
    tokens_per_forward: float
    tokens_per_second: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    paper: PaperCell

    @property
    def cells(self) -> list[str]:
        interval = "" if self.accuracy is None else f" [{self.accuracy_low:.3f}, {self.accuracy_high:.3f}]"
        accuracy = "not run" if self.accuracy is None else f"{self.accuracy:.3f}{interval}"
        away = "" if self.speedup_high is None else f" ±{self.speedup_high - self.speedup:.2f}"
        return [
            self.row if self.is_published else f"{self.row} (ours)",
            accuracy,
            str(self.paper),
            f"{self.tokens_per_forward:.2f}",
            f"{self.tokens_per_second:,.1f}",
            f"{self.speedup:.2f}{away}",
            "" if self.identical is None else f"{self.identical}/{self.problems}",
            str(self.refused) if self.refused else "",
        ]


def results_of(model: str, rows: Sequence[Row], records: Iterable[Record]) -> list[Result]:
    """The results of all rows, for each block size, number of requests at once and task. `model`: its name."""
    groups: dict[tuple[int, int, str], dict[str, list[Record]]] = {}
    for record in sorted(records, key=lambda record: record.chunk.start):
        groups.setdefault(record.chunk[:3], {}).setdefault(record.chunk.row, []).append(record)
    return [
        _result(model, row, group[row.name], group["static"])
        for group in groups.values()
        for row in rows
        if row.name in group and "static" in group
    ]


def _result(model: str, row: Row, records: Sequence[Record], static: Sequence[Record]) -> Result:
    """The result of a row on the chunks that static has, too."""
    by_start = {record.chunk.start: record for record in static}
    records = [record for record in records if record.chunk.start in by_start]
    static = [by_start[record.chunk.start] for record in records]
    answers, right = _answers(records), [value for record in records for value in record.right]
    accuracy = None if None in right else proportion(sum(map(bool, right)), len(right))
    pieces, base = _pieces(records), _pieces(static)
    is_compared = len(records) > 1 and row.name != "static" and all(base.amounts)
    ratio = ratio_of_rates(pieces, base) if is_compared else None
    tokens = sum(answer.tokens for answer in answers)
    same = sum(a.text == b.text and a.tokens == b.tokens for a, b in zip(answers, _answers(static), strict=True))
    block_size, together, task = records[0].chunk[:3]
    return Result(
        block_size=block_size,
        together=together,
        task=task,
        row=row.name,
        is_published=row.is_published,
        problems=len(answers),
        right=None if accuracy is None else sum(map(bool, right)),
        accuracy=accuracy.value if accuracy else None,
        accuracy_low=accuracy.low if accuracy else None,
        accuracy_high=accuracy.high if accuracy else None,
        identical=same if row.is_lossless else None,
        refused=sum(bool(answer.error) for answer in answers),
        tokens=tokens,
        tokens_per_forward=tokens / max(1, sum(answer.forwards for answer in answers)),
        tokens_per_second=pieces.rate,
        speedup=pieces.rate / base.rate if base.rate else 0.0,
        speedup_low=ratio.low if ratio else None,
        speedup_high=ratio.high if ratio else None,
        paper=paper_cell(model, block_size, row.mode, task),
    )


def _answers(records: Sequence[Record]) -> list[Answer]:
    return [answer for record in records for answer in record.answers]


def _pieces(records: Sequence[Record]) -> Pieces:
    tokens = [sum(answer.tokens for answer in record.answers) for record in records]
    return Pieces(tokens, [record.seconds for record in records])


# --- files -----------------------------------------------------------------------------------------


def titles(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """The tables: a title, and its results."""
    groups = groupby(results, key=lambda result: (result.task, result.block_size, result.together))
    return [
        (f"{task}, blocks of {block_size}, {together} at once, {(rows := list(group))[0].problems} problems", rows)
        for (task, block_size, together), group in groups
    ]


def table_of(results: Sequence[Result]) -> tuple[Sequence[str], list[list[str]]]:
    """The columns of a table, and the cells of its rows. Without a published number the column `paper` is left out."""
    table, paper = [list(COLUMNS), *(row.cells for row in results)], COLUMNS.index("paper")
    if not any(row[paper] for row in table[1:]):
        table = [row[:paper] + row[paper + 1 :] for row in table]
    return table[0], table[1:]


def write_tables(folder: Path, about: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Writes `paper.json` and `paper.md`."""
    content = {"measured": about, "rows": [asdict(result) for result in results]}
    (folder / "paper.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = [f"# {about['model']}", ""]
    for title, rows in titles(results):
        columns, cells = table_of(rows)
        lines += [f"## {title}", "", _line(columns), _line(["---"] * len(columns)), *map(_line, cells), ""]
    (folder / "paper.md").write_text("\n".join(lines), encoding="utf-8")


def write_plots(folder: Path, results: Sequence[Result]) -> None:
    """Writes a plot for each table with accuracies."""
    for title, rows in titles(results):
        if any(row.accuracy is not None for row in rows):
            _plot(folder / f"{rows[0].task}-block-{rows[0].block_size}-at-{rows[0].together}.png", title, rows)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plot(path: Path, title: str, rows: Sequence[Result]) -> None:
    """Accuracy against tokens a second over static's: a line for each mode.

    The paper's numbers are bars over the range of its speed-ups, or lines where it has no speed-up.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for mode in dict.fromkeys(row.row.partition(" ")[0] for row in rows):
        points = [
            (row.speedup, 100 * row.accuracy)
            for row in rows
            if row.row.partition(" ")[0] == mode and row.accuracy is not None
        ]
        axes.plot(*zip(*points, strict=True), marker="o", linestyle="-" if len(points) > 1 else "", label=mode)
    for row in rows:
        if row.paper.accuracy is None:
            continue
        if row.paper.speedup is None:
            axes.axhline(row.paper.accuracy, color="gray", linewidth=0.5)
        else:
            axes.hlines(row.paper.accuracy, *row.paper.speedup, color="gray", linewidth=3)
        text: dict[str, Any] = {"fontsize": 6, "ha": "right", "xycoords": ("axes fraction", "data")}
        axes.annotate(f"paper: {row.row}", (0.99, row.paper.accuracy), **text)
    axes.set(title=title, xlabel="tokens a second, over static", ylabel="accuracy, %", ylim=(-2, 102))
    axes.legend()
    figure.savefig(path, dpi=150)
