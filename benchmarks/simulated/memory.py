"""`python -m benchmarks.simulated.memory`: the rules by which requests share the KV cache, on a trace of requests.

The product's engine decodes the trace by a simulated clock. Its rule is the expected peak. Beside it: `reserve`, all
pages that a request can ever need, and `free`, the pages of its prompt alone (vLLM's rule).
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import typer

from benchmarks import options as cli
from benchmarks.simulated.clock import SimulatedClock
from benchmarks.simulated.network import Acceptance, SimulatedWeights
from benchmarks.simulated.play import demo
from benchmarks.simulated.runner import DeviceTimes, HostTimes, SimulatedRunner
from service.decode.modes import Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, StepReport
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.runner import ModelRunner
from service.engine.page_forecast import PageForecast
from service.engine.prefix_cache import Lease
from service.settings import defaults

#: SDAR-4B on an H100, beyond 128 rows extrapolated
_DEVICE = DeviceTimes(((1, 4.1), (32, 5.28), (512, 37.2)), ((1, 1.0), (512, 10.0)), graphs=False)
_NO_HOST = HostTimes(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
_BLOCK, _LIMIT, _VOCABULARY = 4, 4096, range(10, 200)
#: no answer has it: the trace ends each answer at its own length
_END = frozenset([1])


class Reserve(PageForecast):
    """All pages of a request are reserved at its start."""

    def peak(self, leases: Sequence[Lease], num_used: int, num_new: int) -> int:  # noqa: ARG002
        return sum(lease.limit for lease in leases)


class Free(PageForecast):
    """A request starts if the pages of its prompt are free."""

    def peak(self, leases: Sequence[Lease], num_used: int, num_new: int) -> int:  # noqa: ARG002
        return 0


RULES: dict[str, type[PageForecast]] = {"reserve": Reserve, "free": Free, "peak": PageForecast}


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests that all come at once. Prompts and answers are lognormal, by their median and sigma. In tokens."""

    requests: int = 500
    prompt: tuple[float, float] = (200, 0.775)
    answer: tuple[float, float] = (200, 0.9)

    def lengths(self) -> list[tuple[int, int]]:
        rng, drawn = random.Random(0), list[tuple[int, int]]()
        for _ in range(self.requests):
            prompt, answer = (
                round(median * rng.lognormvariate(0, sigma)) for median, sigma in (self.prompt, self.answer)
            )
            drawn.append((max(4, min(4000, prompt)), max(1, min(_LIMIT, answer))))
        return drawn


class Counts:
    """An observer. `running`, `used`: requests at once and the share of pages in use, while requests wait."""

    def __init__(self) -> None:
        self.running, self.used = list[int](), list[float]()
        self.most = self.preemptions = self.recomputed = 0

    def on_step(self, report: StepReport) -> None:
        if report.state.num_waiting:
            self.running.append(report.state.num_running)
            self.used.append(report.state.kv_usage)
        self.most = max(self.most, report.state.num_running)
        self.preemptions += report.cache.preemptions
        self.recomputed += report.cache.recomputed

    def on_event(self, *_: object) -> None: ...


def run(trace: Trace, tokens: int, max_running: int, rule: str) -> dict[str, Any]:
    """One rule on one trace. Times are seconds of the simulated clock."""
    clock, counts, weights = SimulatedClock(), Counts(), SimulatedWeights(_BLOCK, Acceptance())
    checkpoint = demo(_BLOCK)

    def runner(loaded: Any, num_pages: int, *_: object) -> ModelRunner:
        return cast(ModelRunner, SimulatedRunner((_NO_HOST, _DEVICE), clock, weights, loaded, num_pages))

    config = EngineConfig(
        max_running=max_running, max_rows=1024, kv_cache_tokens=tokens, async_scheduling=False,
        max_prefill_tokens=defaults.PREFILL_TOKENS_GPU,
    )  # fmt: skip
    costs = StepCosts(Curve(_DEVICE.backbone))
    engine = Engine(
        checkpoint, config, counts, EngineDeps(clock=clock, costs=costs, runner=runner, forecast=RULES[rule])
    )
    lengths, rng, prompts = dict[str, int](), random.Random(1), 0
    for number, (prompt, answer) in enumerate(trace.lengths()):
        lengths[str(number)], prompts = answer, prompts + prompt
        text = tuple(rng.choices(_VOCABULARY, k=prompt))
        engine.submit(
            GenerationRequest(str(number), text, Static(), max_new_tokens=_LIMIT, stop_token_ids=_END, keep_steps=False)
        )
    row = _decode(engine, clock, counts, lengths)
    computed = prompts + sum(lengths.values()) + counts.recomputed
    return {"rule": rule, **row, "recomputed": counts.recomputed / computed}


def _decode(engine: Engine, clock: SimulatedClock, counts: Counts, lengths: dict[str, int]) -> dict[str, Any]:
    """Each answer ends at its length, as by a stop token."""
    decoded, latest = dict.fromkeys(lengths, 0), dict.fromkeys(lengths, 0.0)
    waits, ends, pauses, preempted = list[float](), list[float](), [0.0], [0]
    while engine.has_work:
        for event in engine.step():
            name, now = event.request_id, clock()
            if not decoded[name]:
                waits.append(event.stats.queue_s)
            else:
                pauses.append(now - latest[name])
            decoded[name] += len(event.token_ids)
            latest[name] = now
            if decoded[name] >= lengths[name] and event.finish_reason is None:
                engine.abort(name)
            if decoded[name] >= lengths[name]:
                ends.append(now)
                preempted.append(event.stats.num_preemptions)
    return {
        "at_once": statistics.mean(counts.running or [0]), "most": counts.most,
        "in_use": statistics.mean(counts.used or [0]), "tokens_s": sum(decoded.values()) / max(ends),
        "preemptions": 100 * counts.preemptions / len(lengths),
        "hit": sum(count > 0 for count in preempted) / len(lengths), "most_often": max(preempted),
        "wait_p50": _quantile(waits, 0.5), "wait_p99": _quantile(waits, 0.99), "longest_pause": max(pauses),
        "latency_p50": _quantile(ends, 0.5), "latency_p99": _quantile(ends, 0.99),
    }  # fmt: skip


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def command(
    tokens: Annotated[int, typer.Option(min=_LIMIT + 4096, help="Tokens of the KV cache.")] = 65_536,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests at once, at most.")] = 256,
    requests: Annotated[int, typer.Option(min=1, help="Requests of the trace, all at the start.")] = 500,
    answer: Annotated[float, typer.Option(min=1, help="The median of answers, in tokens.")] = 200,
    sigma: Annotated[float, typer.Option(min=0, help="The sigma of the logarithm of answers.")] = 0.9,
    rule: Annotated[list[str], typer.Option(help="May be given again.")] = [*RULES],  # noqa: B006
    output: cli.OutputOption = None,
) -> None:
    """Compares rules of admission on a trace: requests at once, preemptions, recomputed tokens, waiting."""
    trace, rows = replace(Trace(), requests=requests, answer=(answer, sigma)), list[dict[str, Any]]()
    cli.use_threads(1)
    for name in rule:
        rows.append(run(trace, tokens, max_num_seqs, name))
        cli.write_rows(output, rows)
    names = [name for name in rows[0] if name != "rule"]
    lines = cli.table("rule", *names)
    for row in rows:
        lines.add_row(row["rule"], *(f"{row[name]:.3g}" for name in names))
    cli.results().print(lines)


if __name__ == "__main__":
    cli.run(command)
