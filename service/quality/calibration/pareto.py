"""The Pareto frontier of accuracy and speed, the presets on it, and the calibration file that has both.

Presets are chosen twice: by the loss at temperature 0, and by the largest loss at the temperatures above it. Two speeds
within the margin `tie` count as equal. Among equal plans the more accurate one is chosen, then the one with more tokens
per forward, which is likely to be faster on another device. `warnings_of` names the uncertain choices.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.quality.load_bands import bands_of
from service.quality.schema import (
    QUALITIES,
    Identity,
    Margins,
    Measured,
    PlanResult,
    QualityFile,
    QualityName,
    SampledResult,
    Speed,
)

#: the accuracy of a plan less static's
AccuracyDifference = Callable[[PlanResult], float]
GREEDY: AccuracyDifference = attrgetter("difference")
SAMPLED: AccuracyDifference = attrgetter("sampled_difference")
#: a loss at the margin itself is within
_ROUNDING = 1e-9


def assemble(
    checkpoint: Identity, measured: Measured, rows: Sequence[PlanResult], margins: Margins | None = None
) -> QualityFile:
    """The calibration file of the measured `rows`. At every measured load the presets are chosen anew."""
    margins = margins or Margins()
    marked = with_frontier(rows, measured.concurrency)
    loads = measured.concurrency
    greedy, sampled = (
        {load: choose(marked, load, margins, difference) for load in loads} for difference in (GREEDY, SAMPLED)
    )
    warnings = (
        warnings_of(marked, presets, load, margins, difference)
        for chosen, difference in ((greedy, GREEDY), (sampled, SAMPLED))
        for load, presets in chosen.items()
    )
    return QualityFile(
        version=3,
        checkpoint=checkpoint,
        measured=measured,
        margins=margins,
        presets={name: bands_of([(load, greedy[load][name].plan) for load in loads]) for name in QUALITIES},
        sampled_presets={name: bands_of([(load, sampled[load][name].plan) for load in loads]) for name in QUALITIES},
        warnings=list(dict.fromkeys(chain.from_iterable(warnings))),
        rows=marked,
    )


def is_lossless(mode: DecodingMode) -> bool:
    """Whether the output is static's by construction: static itself, or drafts verified against it without a margin."""
    if isinstance(mode, Speculative):
        return not mode.drafts_decide and mode.plain == Static()
    return mode == Static()


def with_frontier(rows: Sequence[PlanResult], loads: Sequence[int]) -> list[PlanResult]:
    """The rows, with a mark on each speed that no other row beats: as accurate and faster, or the other way round."""

    def marked(row: PlanResult, load: int) -> Speed:
        best = not any(_beats(other, row, load) for other in rows)
        return row.speed_at(load).model_copy(update={"on_frontier": best})

    return [row.model_copy(update={"speed": [marked(row, load) for load in loads]}) for row in rows]


def choose(
    rows: Sequence[PlanResult], at: int, margins: Margins, difference: AccuracyDifference = GREEDY
) -> Mapping[QualityName, PlanResult]:
    """The presets at a load. Static is always among the rows, so every preset exists."""

    def fastest(margin: float) -> PlanResult:
        allowed = [row for row in rows if difference(row) >= -margin - _ROUNDING]
        return _fastest(allowed, at, margins.tie)

    lossless = _fastest([row for row in rows if row.lossless], at, margins.tie)
    return {"lossless": lossless, "balanced": fastest(margins.balanced), "fast": fastest(margins.fast)}


def warnings_of(
    rows: Sequence[PlanResult],
    presets: Mapping[QualityName, PlanResult],
    at: int,
    margins: Margins,
    difference: AccuracyDifference = GREEDY,
) -> list[str]:
    """Warnings about the noise in the choice of presets at a load, by this difference."""
    warnings = []
    for name, margin in (("balanced", margins.balanced), ("fast", margins.fast)):
        row = presets[name]  # type: ignore[index]
        results: Sequence[PlanResult | SampledResult] = [row] if difference is GREEDY else row.sampled
        warnings += [
            _accuracy_warning(f"{name}: {row.plan.name!r}", result, margin)
            for result in results
            if not row.lossless and result.difference_low < -margin
        ]
    for name, row in presets.items():
        speed = row.speed_at(at)
        noise = max(speed.speedup - speed.speedup_low, speed.speedup_high - speed.speedup) / speed.speedup
        if noise > margins.tie:
            warnings.append(
                f"{name}: the speed of {row.plan.name!r}, {at} together, is uncertain by {noise:.0%}; "
                f"speeds within {margins.tie:.0%} count as equal"
            )
    for row in rows:
        if row.lossless and row.identical < row.prompts:
            different = row.prompts - row.identical
            warnings.append(f"{row.plan.name!r}: {different} of {row.prompts} answers are not static's, by rounding")
    return warnings


def _accuracy_warning(plan: str, result: PlanResult | SampledResult, margin: float) -> str:
    if isinstance(result, SampledResult):
        plan = f"{plan} at temperature {result.temperature:g}"
    width = max(result.difference - result.difference_low, result.difference_high - result.difference)
    if width > margin:
        away = f"{100 * result.difference:+.1f} points from static on {result.prompts} prompts"
        so_far = f"{away}, give or take {100 * width:.1f}"
        return f"{plan} is {so_far}, which is more than the margin of {100 * margin:g}: take more prompts"
    worst = f"{100 * result.difference_low:+.1f} points from static, over the margin of {100 * margin:g}"
    return f"{plan} may be as far as {worst}"


def _fastest(rows: Sequence[PlanResult], at: int, tie: float) -> PlanResult:
    best = max(row.speed_at(at).tokens_per_second for row in rows)
    tied = [row for row in rows if row.speed_at(at).tokens_per_second >= (1 - tie) * best]
    return max(tied, key=lambda row: (row.difference, row.tokens_per_forward, row.speed_at(at).tokens_per_second))


def _beats(row: PlanResult, other: PlanResult, at: int) -> bool:
    both = [(plan.speed_at(at).tokens_per_second, plan.difference) for plan in (row, other)]
    return both[0] != both[1] and all(mine >= theirs for mine, theirs in zip(*both, strict=True))
