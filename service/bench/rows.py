"""Rows of the calibration file out of the records of a calibration. Sums only; knows no engine and no files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from service.bench.records import Record
from service.decode.mode import DecodingMode
from service.quality.frontier import is_lossless
from service.quality.schema import Plan, Row, Speed
from service.quality.statistics import Estimate, Pieces, paired_difference, ratio_of_rates, share

Clock = Literal["cpu", "wall"]


def make_rows(plans: Sequence[DecodingMode], records: Iterable[Record], clock: Clock, timed: int) -> list[Row]:
    """A row a plan, static first. `timed`: prompts that were timed at the highest concurrency."""
    by_plan: dict[str, list[Record]] = {Plan.of(plan).name: [] for plan in plans}
    for record in records:
        by_plan[record.plan].append(record)
    static = by_plan[Plan.of(plans[0]).name]
    return [_row(plan, by_plan[Plan.of(plan).name], static, (clock, timed)) for plan in plans]


def _row(plan: DecodingMode, own: list[Record], static: list[Record], how: tuple[Clock, int]) -> Row:
    clock, timed = how
    mine, theirs = _answers(own), _answers(static)
    pairs = [(mine[number], theirs[number]) for number in mine]
    gained = sum(one[0] and not other[0] for one, other in pairs)
    lost = sum(other[0] and not one[0] for one, other in pairs)
    lossless = is_lossless(plan)
    scored = theirs if lossless else mine
    accuracy = share(sum(right for right, _ in scored.values()), len(scored))
    difference = Estimate(0.0, 0.0, 0.0) if lossless else paired_difference(gained, lost, len(pairs))
    concurrency = sorted({record.together for record in own})
    return Row(
        plan=Plan.of(plan),
        lossless=lossless,
        prompts=len(pairs),
        right=sum(right for right, _ in mine.values()),
        gained=gained,
        lost=lost,
        identical=sum(one[1] == other[1] for one, other in pairs),
        accuracy=accuracy.value,
        accuracy_low=accuracy.low,
        accuracy_high=accuracy.high,
        difference=difference.value,
        difference_low=difference.low,
        difference_high=difference.high,
        tokens_per_forward=_tokens_per_forward([record for record in own if record.together == concurrency[-1]]),
        speed=[
            _speed(_timed(own, together, timed), _timed(static, together, timed), clock) for together in concurrency
        ],
    )


def _timed(records: Sequence[Record], together: int, timed: int) -> list[Record]:
    """The timed chunks of a concurrency, in order."""
    chosen = [record for record in records if record.together == together and record.start < timed]
    return sorted(chosen, key=lambda record: record.start)


def _answers(records: Sequence[Record]) -> dict[int, tuple[bool, str]]:
    """Whether each prompt was answered right, and a digest of the answer, at the highest concurrency."""
    most = max(record.together for record in records)
    return {
        record.start + number: (right, answer)
        for record in records
        if record.together == most
        for number, (right, answer) in enumerate(zip(record.right, record.answers, strict=True))
    }


def _tokens_per_forward(records: Sequence[Record]) -> float:
    return sum(record.tokens for record in records) / sum(record.forwards for record in records)


def _speed(own: Sequence[Record], static: Sequence[Record], clock: Clock) -> Speed:
    mine = _pieces(own, clock)
    speedup = ratio_of_rates(mine, _pieces(static, clock))
    return Speed(
        concurrency=own[0].together,
        tokens_per_second=mine.rate,
        tokens_per_second_wall=_pieces(own, "wall").rate,
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
    )


def _pieces(records: Sequence[Record], clock: Clock) -> Pieces:
    seconds = [record.cpu_s if clock == "cpu" else record.wall_s for record in records]
    return Pieces([record.tokens for record in records], seconds)
