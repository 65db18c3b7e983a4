"""The texts of the report: answers to a user's questions, and descriptions of the pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtest.report.result import Result
from loadtest.report.summary import Point, fair_slowdowns, saturation

THROUGHPUT = (
    "Left: tokens of all users a second. Where a curve bends, the machine is full; more users only wait longer. The "
    "ring is the lowest level with 95 % of the highest throughput. Right: requests a second whose first block and "
    "every further block came in time; it falls where more users no longer bring more throughput."
)
LATENCY = "What a user waits for the first block, and from one block to the next (logarithmic)."
FORWARDS = (
    "Left: how many tokens a forward of the model gives one request, a property of the mode. Right: tokens of all "
    "requests by forwards of the engine, which decodes them together."
)
TOGETHER = (
    "The same concurrency, once with this mode alone, once with all modes in turn. It shows whether slow modes delay "
    "other modes."
)
ARRIVALS = (
    "Requests arrive at random and do not wait for others; times count from when they were due. Where the dotted line "
    "leaves the dashed one, the service no longer keeps up; where the full line does, answers come too late."
)
_GOOD_SHARE = 0.95


def answers(result: Result) -> Iterator[tuple[str, str]]:
    """Pairs of a question and its answer."""
    if modes := result.modes:
        yield "How many users at once?", _users(modes)
        yield "Which mode?", _choice(modes)
    if pairs := result.pairs:
        yield "Does a slow mode delay others?", _shares(pairs)
    if open_loops := result.arrivals:
        yield "What happens under overload?", _too_much(open_loops)
    if shares := [point.client_cpu for point in result.points if point.client_cpu is not None]:
        cost = f"Up to {max(shares) * 100:.0f} % of one core, beside the service."
        yield "What did the load generator itself cost?", cost


def number(value: float | str | None) -> str:
    """A number for readers: three digits, or a dash if it is not known."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _users(modes: dict[str, list[Point]]) -> str:
    said = []
    for name, found in modes.items():
        good = [point for point in found if (point.good_share or 0) >= _GOOD_SHARE]
        if not good:
            said.append(f"{name}: not even {found[0].level:g}")
            continue
        most = max(good, key=lambda point: point.level)
        more = " or more" if most.level == max(point.level for point in found) else ""
        said.append(f"{name}: {most.level:g}{more} ({most.tokens_per_s:,.0f} tokens/s)")
    intro = f"The highest level measured at which {_GOOD_SHARE:.0%} of the requests meet the objective. "
    return intro + "; ".join(said) + "."


def _choice(modes: dict[str, list[Point]]) -> str:
    peaks = {name: point for name, found in modes.items() if (point := saturation(found))}
    firsts = {name: found[0].total_p50_ms for name, found in modes.items() if found[0].total_p50_ms is not None}
    if not peaks or not firsts:
        return "Nothing was answered."
    best = max(peaks, key=lambda name: peaks[name].tokens_per_s)
    quick = min(firsts, key=lambda name: firsts[name])
    said = "; ".join(f"{name} {p.tokens_per_s:,.0f} tokens/s from {p.level:g} users on" for name, p in peaks.items())
    return (
        f"Most throughput: {best}. Quickest whole answer at the lowest level: {quick}, p50 {number(firsts[quick])} ms. "
        f"Saturation: {said}."
    )


def _shares(pairs: Sequence[tuple[Point, Point]]) -> str:
    said = [
        f"{mixed.mode} waits {got:.2g} times as long between blocks as alone, its share predicts {fair:.2g}"
        for (alone, mixed), fair in zip(pairs, fair_slowdowns(pairs), strict=True)
        if fair is not None and alone.gap_p50_ms and (got := (mixed.gap_p50_ms or 0) / alone.gap_p50_ms)
    ]
    intro = (
        "All modes share the engine's forwards, so the mix's forwards take the mean of what each mode's take alone, "
        "weighed by how much of the mix it is. At the median: "
    )
    return intro + "; ".join(said) + "." if said else "The service does not tell how long its forwards take."


def _too_much(open_loops: dict[str, list[Point]]) -> str:
    said = []
    for name, found in open_loops.items():
        worst = max(found, key=lambda point: point.level)
        came = worst.requests / worst.seconds
        said.append(
            f"{name}: of {came:.3g} requests a second {worst.requests_per_s:.3g} are answered, "
            f"{worst.good_share or 0:.0%} in time; {worst.failed} of {worst.requests} are refused or fail; p95 to the "
            f"first block {number(worst.first_block_p95_ms)} ms"
        )
    return "; ".join(said) + "."
