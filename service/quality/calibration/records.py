"""The measurements of a calibration so far, and the rows of the calibration file that are made of them.

A file has a line of JSON for every chunk of every plan, so that a calibration can go on later. The first line names the
circumstances; a file of other circumstances is begun anew. Intervals are of 95 %. Knows no engine.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import msgspec

from service.decode.mode import DecodingMode
from service.quality.calibration.pareto import is_lossless
from service.quality.schema import Plan, PlanResult, SampledResult

#: whether an answer is right, and its digest
_Answer = tuple[bool, str]
#: the standard normal quantile of 95 % intervals
Z = NormalDist().inv_cdf(0.975)


class PlanChunk(NamedTuple):
    """A plan over a chunk of prompts from `start` on, at a temperature."""

    plan: str
    start: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """The result of a job. `answers`: a digest of each answer's tokens, to compare them."""

    job: PlanChunk
    right: list[bool]
    answers: list[str]
    tokens: int
    forwards: int


class Notebook:
    """Records by job, in memory and, with a path, on disk."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self.records: dict[PlanChunk, ChunkRecord] = {}
        self._path, self._about = path, json.loads(json.dumps(about))
        if path is not None and not self._read(path):
            path.write_text(json.dumps(self._about) + "\n", encoding="utf-8")

    def add(self, record: ChunkRecord) -> None:
        self.records[record.job] = record
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> bool:
        """Whether the file belongs to this calibration. An incomplete last line is left out."""
        if not path.is_file():
            return False
        first, *lines = path.read_text(encoding="utf-8").split("\n")
        try:
            if json.loads(first) != self._about:
                return False
            records = [msgspec.json.decode(line, type=ChunkRecord) for line in lines[:-1]]
        except ValueError:
            return False
        self.records = {record.job: record for record in records}
        if lines and lines[-1]:
            path.write_text("\n".join([first, *lines[:-1], ""]), encoding="utf-8")
        return True


# --- intervals ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def fields(self, name: str) -> dict[str, Any]:
        """As the fields of a row: `name`, `name_low`, `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def proportion(count: int, total: int) -> Estimate:
    """The proportion `count` / `total`, with Wilson's interval."""
    value, weight = count / total, Z * Z / total
    middle = (value + weight / 2) / (1 + weight)
    half = Z * math.sqrt(value * (1 - value) / total + weight / (4 * total)) / (1 + weight)
    return Estimate(value, max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


def paired_difference(gained: int, lost: int, total: int) -> Estimate:
    """(`gained` - `lost`) / `total`, of the same `total` problems. Interval: Agresti and Min (2005)."""
    more, less, count = gained + 0.5, lost + 0.5, total + 2
    middle = (more - less) / count
    half = Z * math.sqrt(more + less - (more - less) ** 2 / count) / count
    value = (gained - lost) / total
    return Estimate(value, max(-1.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


# --- rows ---------------------------------------------------------------------------------------------


def make_rows(plans: Sequence[DecodingMode], records: Iterable[ChunkRecord]) -> list[PlanResult]:
    """A row a plan, static first."""
    by_plan: dict[str, list[ChunkRecord]] = {Plan.from_mode(plan).name: [] for plan in plans}
    for record in records:
        by_plan[record.job.plan].append(record)
    static = by_plan[Plan.from_mode(plans[0]).name]
    return [_row(plan, by_plan[Plan.from_mode(plan).name], static) for plan in plans]


def _row(plan: DecodingMode, all_records: list[ChunkRecord], all_static: list[ChunkRecord]) -> PlanResult:
    records, lossless = _at(0.0, all_records), is_lossless(plan)
    answers, static_answers = _answers(records), _answers(_at(0.0, all_static))
    scored = static_answers if lossless else answers
    accuracy = proportion(sum(right for right, _ in scored.values()), len(scored))
    counts = _compared(answers, static_answers) | (Estimate(0.0, 0.0, 0.0).fields("difference") if lossless else {})
    return PlanResult(
        plan=Plan.from_mode(plan),
        lossless=lossless,
        identical=sum(digest == static_answers[index][1] for index, (_, digest) in answers.items()),
        **counts,
        **accuracy.fields("accuracy"),
        tokens_per_forward=sum(record.tokens for record in records) / sum(record.forwards for record in records),
        sampled=[
            SampledResult(
                temperature=temperature,
                **_compared(_answers(_at(temperature, all_records)), _answers(_at(temperature, all_static))),
            )
            for temperature in sorted({record.job.temperature for record in all_records} - {0.0})
        ],
    )


def _at(temperature: float, records: Iterable[ChunkRecord]) -> list[ChunkRecord]:
    return [record for record in records if record.job.temperature == temperature]


def _compared(answers: Mapping[int, _Answer], static: Mapping[int, _Answer]) -> dict[str, Any]:
    """The number of right answers, and the difference from static's on the same prompts."""
    pairs = [(answers[index][0], static[index][0]) for index in answers]
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    right = sum(right for right, _ in pairs)
    difference = paired_difference(gained, lost, len(pairs)).fields("difference")
    return {"prompts": len(pairs), "right": right, "gained": gained, "lost": lost, **difference}


def _answers(records: Sequence[ChunkRecord]) -> dict[int, _Answer]:
    """Whether each prompt was answered right, and a digest of the answer."""
    return {
        record.job.start + offset: answer
        for record in records
        for offset, answer in enumerate(zip(record.right, record.answers, strict=True))
    }
