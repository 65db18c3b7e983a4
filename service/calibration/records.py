"""What a calibration has measured so far, and the rows of the calibration file that are made of it.

A file has a line of JSON for every chunk of every plan, so that a calibration can go on later. The first line says what
is measured; a file of something else is begun anew. Knows no engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from service.calibration.intervals import Estimate, Pieces, paired_difference, ratio_of_rates, share
from service.calibration.pareto import is_lossless
from service.decode.mode import DecodingMode
from service.quality.schema import Plan, Row, Speed

Clock = Literal["cpu", "wall"]


class PlanChunk(NamedTuple):
    """A plan over the prompts from `start` on, `together` at once."""

    plan: str
    together: int
    start: int


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """The result of a job. `answers`: a digest of each answer's tokens, to compare them."""

    plan: str
    together: int
    start: int
    right: list[bool]
    answers: list[str]
    tokens: int
    forwards: int
    cpu_s: float
    wall_s: float

    @property
    def job(self) -> PlanChunk:
        """The job that the record is of."""
        return PlanChunk(self.plan, self.together, self.start)


class Notebook:
    """Records by job, in memory and, with a path, on disk."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self.records: dict[PlanChunk, ChunkRecord] = {}
        self._path, self._about = path, json.loads(json.dumps(about))
        if path is not None and not self._read(path):
            self.records.clear()
            path.write_text(json.dumps(self._about) + "\n", encoding="utf-8")

    def add(self, record: ChunkRecord) -> None:
        """Keeps a record."""
        self.records[record.job] = record
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")

    def remove(self) -> None:
        """Deletes the file; what was measured is written elsewhere."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> bool:
        """Whether the file is of this very calibration. A last line that was cut off is left out."""
        if not path.is_file():
            return False
        first, *rest = path.read_text(encoding="utf-8").split("\n")
        try:
            if json.loads(first) != self._about:
                return False
            for line in rest[:-1]:
                record = ChunkRecord(**json.loads(line))
                self.records[record.job] = record
        except (ValueError, TypeError):
            return False
        if rest and rest[-1]:
            path.write_text("\n".join([first, *rest[:-1], ""]), encoding="utf-8")
        return True


def make_rows(plans: Sequence[DecodingMode], records: Iterable[ChunkRecord], clock: Clock, timed: int) -> list[Row]:
    """A row a plan, static first. `timed`: prompts that were timed at the highest concurrency."""
    by_plan: dict[str, list[ChunkRecord]] = {Plan.of(plan).name: [] for plan in plans}
    for record in records:
        by_plan[record.plan].append(record)
    static = by_plan[Plan.of(plans[0]).name]
    return [_row(plan, by_plan[Plan.of(plan).name], static, (clock, timed)) for plan in plans]


def _row(plan: DecodingMode, records: list[ChunkRecord], static: list[ChunkRecord], how: tuple[Clock, int]) -> Row:
    clock, timed = how
    answers, static_answers = _answers(records), _answers(static)
    pairs = [(answers[number], static_answers[number]) for number in answers]
    gained = sum(right and not static_right for (right, _), (static_right, _) in pairs)
    lost = sum(static_right and not right for (right, _), (static_right, _) in pairs)
    lossless = is_lossless(plan)
    scored = static_answers if lossless else answers
    accuracy = share(sum(right for right, _ in scored.values()), len(scored))
    difference = Estimate(0.0, 0.0, 0.0) if lossless else paired_difference(gained, lost, len(pairs))
    concurrency = sorted({record.together for record in records})
    return Row(
        plan=Plan.of(plan),
        lossless=lossless,
        prompts=len(pairs),
        right=sum(right for right, _ in answers.values()),
        gained=gained,
        lost=lost,
        identical=sum(digest == static_digest for (_, digest), (_, static_digest) in pairs),
        accuracy=accuracy.value,
        accuracy_low=accuracy.low,
        accuracy_high=accuracy.high,
        difference=difference.value,
        difference_low=difference.low,
        difference_high=difference.high,
        tokens_per_forward=_tokens_per_forward([record for record in records if record.together == concurrency[-1]]),
        speed=[
            _speed(_timed(records, together, timed), _timed(static, together, timed), clock) for together in concurrency
        ],
    )


def _timed(records: Sequence[ChunkRecord], together: int, timed: int) -> list[ChunkRecord]:
    """The timed chunks of a concurrency, in order."""
    chosen = [record for record in records if record.together == together and record.start < timed]
    return sorted(chosen, key=lambda record: record.start)


def _answers(records: Sequence[ChunkRecord]) -> dict[int, tuple[bool, str]]:
    """Whether each prompt was answered right, and a digest of the answer, at the highest concurrency."""
    most = max(record.together for record in records)
    return {
        record.start + number: (right, answer)
        for record in records
        if record.together == most
        for number, (right, answer) in enumerate(zip(record.right, record.answers, strict=True))
    }


def _tokens_per_forward(records: Sequence[ChunkRecord]) -> float:
    return sum(record.tokens for record in records) / sum(record.forwards for record in records)


def _speed(records: Sequence[ChunkRecord], static: Sequence[ChunkRecord], clock: Clock) -> Speed:
    pieces = _pieces(records, clock)
    speedup = ratio_of_rates(pieces, _pieces(static, clock))
    return Speed(
        concurrency=records[0].together,
        tokens_per_second=pieces.rate,
        tokens_per_second_wall=_pieces(records, "wall").rate,
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
    )


def _pieces(records: Sequence[ChunkRecord], clock: Clock) -> Pieces:
    seconds = [record.cpu_s if clock == "cpu" else record.wall_s for record in records]
    return Pieces([record.tokens for record in records], seconds)
