"""The presets of measured plans, and the calibration file that has both.

Presets are chosen twice: by the loss at temperature 0, and by the largest loss at the temperatures above it. A plan is
within a margin if its whole interval is: the best of many estimates is lucky. The engine runs the fastest plan of a
preset. So a preset has the plans that can be the fastest on some machine at some load.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Remask, Speculative, Static
from service.decode.registry import leaves_drafts_open
from service.quality.schema import (
    LOSSLESS,
    QUALITIES,
    Identity,
    Margins,
    Measured,
    PlanResult,
    QualityFile,
    QualityName,
    SampledResult,
)

#: the accuracy of a plan less static's, the low end of its interval
AccuracyDifference = Callable[[PlanResult], float]
GREEDY: AccuracyDifference = attrgetter("difference_low")
SAMPLED: AccuracyDifference = attrgetter("sampled_difference_low")
#: the most plans of a preset, since the engine has to try them all
_MOST_PLANS = 5


def assemble(
    checkpoint: Identity, measured: Measured, rows: Sequence[PlanResult], margins: Margins | None = None
) -> QualityFile:
    """The calibration file of the measured `rows`, the lossless plan among them."""
    margins = margins or Margins()
    greedy, sampled = (choose(rows, margins, difference) for difference in (GREEDY, SAMPLED))
    warnings = warnings_of(rows, greedy, margins), warnings_of(rows, sampled, margins, SAMPLED)
    return QualityFile(
        version=4,
        checkpoint=checkpoint,
        measured=measured,
        margins=margins,
        presets={name: [row.preset_plan for row in greedy[name]] for name in QUALITIES},
        sampled_presets={name: [row.preset_plan for row in sampled[name]] for name in QUALITIES},
        warnings=list(dict.fromkeys(chain(*warnings))),
        rows=list(rows),
    )


def is_lossless(mode: DecodingMode) -> bool:
    """Whether the output is static's by construction: static itself, or drafts verified against it without a margin."""
    if isinstance(mode, Speculative):
        return not mode.drafts_decide and mode.plain == Static()
    return mode == Static()


def choose(
    rows: Sequence[PlanResult], margins: Margins, difference: AccuracyDifference = GREEDY
) -> Mapping[QualityName, list[PlanResult]]:
    """The plans of each preset: the lossless one, then those that can be faster, by ascending tokens per forward."""
    lossless = next(row for row in rows if row.plan == LOSSLESS)

    def within(margin: float) -> list[PlanResult]:
        faster = _fastest_somewhere([row for row in rows if difference(row) >= -margin])
        return [lossless, *faster[1 - _MOST_PLANS :]]

    return {"lossless": [lossless], "balanced": within(margins.balanced), "fast": within(margins.fast)}


def _fastest_somewhere(rows: Sequence[PlanResult]) -> list[PlanResult]:
    """The lossy plans that no other plan beats at every price of MRP's forwards, by ascending tokens per forward.

    Drafts that the engine chooses have no fixed price. Of these plans the one with the most tokens per forward stays.
    It replaces the plan that it verifies, since the engine may also choose no drafts.
    """
    best, covered, cheapest = list[PlanResult](), None, math.inf
    for row in sorted(rows, key=lambda row: -row.tokens_per_forward):
        mode = row.plan.decoding_mode
        if not isinstance(mode, Speculative):
            if mrp_forwards(mode) < cheapest:
                best, cheapest = [row, *best], mrp_forwards(mode)
        elif covered is None and leaves_drafts_open(mode) and not mode.drafts_decide:
            covered = mode.plain
            best = [row, *best]
    return [row for row in best if not row.lossless and row.plan.decoding_mode != covered]


def mrp_forwards(mode: DecodingMode) -> int:
    """The most forwards of MRP after one of the backbone."""
    return mode.mrp_steps if isinstance(mode, Direct) else int(isinstance(mode, Remask))


def warnings_of(
    rows: Sequence[PlanResult],
    presets: Mapping[QualityName, Sequence[PlanResult]],
    margins: Margins,
    difference: AccuracyDifference = GREEDY,
) -> list[str]:
    """Warnings of faster plans that a preset lacks by the width of an interval only, and of rounding lossless ones."""
    warnings = []
    for name, margin in (("balanced", margins.balanced), ("fast", margins.fast)):
        fastest = max(row.tokens_per_forward for row in presets[name])  # type: ignore[index]
        for row in rows:
            results: Sequence[PlanResult | SampledResult] = [row] if difference is GREEDY else row.sampled
            is_uncertain = difference(row) < -margin <= min((each.difference for each in results), default=-1.0)
            if is_uncertain and row.tokens_per_forward > fastest:
                worst = min(results, key=attrgetter("difference_low"))
                warnings.append(f"{name} lacks {row.plan.name!r}: {_uncertain(worst)}")
    for row in rows:
        if row.lossless and row.identical < row.prompts:
            different = row.prompts - row.identical
            warnings.append(f"{row.plan.name!r}: {different} of {row.prompts} answers are not static's, by rounding")
    return warnings


def _uncertain(result: PlanResult | SampledResult) -> str:
    where = f" at temperature {result.temperature:g}" if isinstance(result, SampledResult) else ""
    points, low = 100 * result.difference, 100 * result.difference_low
    return (
        f"{points:+.1f} points from static{where}, perhaps {low:+.1f}; more than {result.prompts} prompts may admit it"
    )
