"""`python -m benchmarks.predict`: how fast a published shape would be on a GPU that is not here.

A small checkpoint decodes with the real engine, so schedules, drafts and acceptance are real. For each of its forwards
the time is added up that the shape would take on the device. `mrp_steps: "auto"` decides by those times, too. Nothing
is measured on the device: the times come from bytes and operations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.floor import forward_need
from benchmarks.machine import Rates
from benchmarks.options import SeveralOption, heldout, run
from benchmarks.runner_around import RunnerAround
from benchmarks.shapes import config_in_shape, shape_named
from benchmarks.throughput import Workload, encoded
from service.calibration.plans import parse_plan
from service.cli.options import CheckpointOptions, OutputOption, use_threads, with_fields
from service.cli.output import Counter, results, table
from service.decode.mode import DecodingMode
from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner, ModelRunner, Pending
from service.errors import InvalidRequest, SettingsError
from service.model import Checkpoint, ModelConfig, load_checkpoint
from service.model.files import display_name
from service.quality.schema import Plan
from service.text import TextCodec

#: bytes read and bfloat16 operations (dense, accumulated in float32) by the second, as NVIDIA's data sheets give them
GPUS = {
    "rtx-4090": Rates(1.008e12, 165e12),
    "l40s": Rates(0.864e12, 362e12),
    "a100-80gb": Rates(2.039e12, 312e12),
    "h100": Rates(3.35e12, 989e12),
    "h200": Rates(4.8e12, 989e12),
}

#: answers of a round for each request that runs at once
_WAVES = 3
#: KV that each of them has room for
_TOKENS = 512

_PLANS = [
    "static",
    "dynamic threshold=0.9",
    "direct mrp_steps=2",
    "remask threshold=0.5",
    "speculative mrp_steps=2",
    "speculative mrp_steps=2 max_drafts=4",
    "speculative mrp_steps=auto",
]


@with_fields("options", CheckpointOptions)
def command(
    shape: Annotated[str, typer.Option(help="Published shape: qwen3-0.6b, sdar-1.7b, sdar-4b, sdar-8b, sdar-30b-a3b.")],
    gpu: Annotated[str, typer.Option(help="rtx-4090, l40s, a100-80gb, h100 or h200, by its data sheet.")],
    options: CheckpointOptions,
    concurrency: SeveralOption = [1, 8, 32, 128],  # noqa: B006
    plan: Annotated[list[str], typer.Option(help="A mode and its knobs; may be given again.")] = _PLANS,
    context: Annotated[int, typer.Option(min=0, help="Tokens that a row reads besides its own.")] = 256,
    above_floor: Annotated[float, typer.Option(min=1, help="A forward's time over the least that it can take.")] = 1.25,
    forward_us: Annotated[float, typer.Option(min=0, help="Microseconds to start and read a forward.")] = 200,
    request_us: Annotated[float, typer.Option(min=0, help="The host's microseconds a request and step.")] = 20,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems that are decoded.")] = 256,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a plan, at least.")] = 24,
    output: OutputOption = None,
) -> None:
    """Predicts the speed of a published shape on a GPU from bytes and operations. Measures nothing.

    The demo decodes its problems, so tokens per forward are the demo's. Each of its forwards has the shape's price.
    This takes minutes. For a quick look: --concurrency 1 --plan static --plan "speculative mrp_steps=auto".
    """
    if gpu not in GPUS:
        raise SettingsError(f"gpu is {gpu!r}, allowed are {', '.join(GPUS)}", param="gpu")
    sizes, plans = shape_named(shape), [parse_plan(text) for text in plan]
    drawn = heldout(problems, seed=1)
    use_threads(None)
    checkpoint = load_checkpoint(options.name, options.on("cpu", "float32"))
    workload = Workload(encoded(TextCodec.load(checkpoint.path), drawn), fewest=requests)
    assumed = Assumptions(above_floor, 1e-6 * forward_us, 1e-6 * request_us, context=context)
    prices = Prices(config_in_shape(checkpoint, sizes), GPUS[gpu], assumed)
    rows, name = list[dict[str, Any]](), display_name(checkpoint.path)
    with Counter(len(concurrency) * len(plans)) as counter:
        for together in concurrency:
            first: PredictedSpeed | None = None
            for made in predict(checkpoint, workload, plans, together, prices):
                first = first or made
                rows.append(_row(made, first) | {"shape": shape, "gpu": gpu, "assumed": asdict(assumed), "model": name})
                counter.next(f"{together} together, {rows[-1]['plan']}")
    if output:
        output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    results().print(_table(rows))


def _row(made: PredictedSpeed, first: PredictedSpeed) -> dict[str, Any]:
    return {
        "concurrency": made.concurrency,
        "plan": Plan.from_mode(made.params).name,
        "tokens_per_forward": made.tokens_per_forward,
        "rows": made.rows,
        "refines": made.refines,
        "step_ms": made.step_ms,
        "tokens_per_second": made.tokens_per_second,
        "times_first": made.tokens_per_second / first.tokens_per_second,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    names = ("together", "plan", "tokens/forward", "rows/forward", "MRP/forward", "step ms", "tokens/s", "times first")
    lines = table(*names, plan="plan")
    for row in rows:
        lines.add_row(
            str(row["concurrency"]),
            row["plan"],
            f"{row['tokens_per_forward']:.2f}",
            f"{row['rows']:.1f}",
            f"{row['refines']:.2f}",
            f"{row['step_ms']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['times_first']:.2f}",
        )
    return lines


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Values that the data sheet of a device lacks.

    `above_floor`: a forward's time over the least that it can take. `forward_s`: further seconds of each forward, for
    its start and its reading. `request_s`: the host's time for a request in a step. `state_s`: its time to find a state
    to draft. `context`: tokens that each row reads besides its own. `itemsize`: bytes of a weight.
    """

    above_floor: float = 1.25
    forward_s: float = 200e-6
    request_s: float = 20e-6
    state_s: float = 20e-6
    context: int = 256
    itemsize: int = 2


class Prices:
    """Predicted seconds of a shape's forwards on a device. `request_s`: the host's seconds for a request in a step."""

    def __init__(self, shape: ModelConfig, device: Rates, assumed: Assumptions) -> None:
        self._shape, self._device, self._assumed = shape, device, assumed
        self.request_s = assumed.request_s
        layers = shape.mrp.num_layers if shape.mrp else 0
        self._mrp = replace(shape, num_layers=layers, experts=None) if layers else None

    def backbone(self, rows: int, sequences: int) -> float:
        """A forward over rows of `sequences` sequences."""
        return self._seconds(self._shape, rows, sequences)

    def mrp(self, rows: int, sequences: int) -> float:
        """A forward of MRP: its layers, and the backbone's output head."""
        if self._mrp is None:
            raise ValueError("the shape has no MRP")
        return self._seconds(self._mrp, rows, sequences)

    def steps(self, most_rows: int) -> StepCosts:
        """The same times as the engine's table of costs, of rows that are a sequence each."""
        counts = sorted({min(1 << power, most_rows) for power in range(most_rows.bit_length() + 1)})
        backbone = Curve(tuple((rows, self.backbone(rows, rows)) for rows in counts))
        mrp = Curve(tuple((rows, self.mrp(rows, rows)) for rows in counts)) if self._mrp else None
        return StepCosts(backbone, mrp, draft=self._assumed.state_s)

    def _seconds(self, shape: ModelConfig, rows: int, sequences: int) -> float:
        assumed = self._assumed
        need = forward_need(shape, rows, assumed.context, assumed.itemsize, sequences)
        return assumed.forward_s + assumed.above_floor * need.seconds(self._device)


class PricedRunner(RunnerAround):
    """Adds up the predicted seconds of the forwards of a runner."""

    def __init__(self, runner: ModelRunner, prices: Prices) -> None:
        super().__init__(runner)
        self._prices = prices
        self.seconds, self.forwards, self.rows, self.refines = 0.0, 0, 0, 0

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """A forward over rows; the backbone's counts the host's work for their requests, too."""
        sequences = _sequences(rows)
        if network == "backbone":
            self.seconds += self._prices.backbone(len(rows), sequences) + self._prices.request_s * sequences
            self.forwards, self.rows = self.forwards + 1, self.rows + len(rows)
        else:
            self.seconds += self._prices.mrp(len(rows), sequences)
            self.refines += 1
        return super().begin(network, rows)


def _sequences(rows: Sequence[Row]) -> int:
    """The number of sequences of the rows: rows of one sequence have the same list of pages."""
    return len({id(row.pages) for row in rows})


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """One plan at a number of concurrent requests. `step_ms`: a backbone forward with its MRP forwards and host work.

    `rows`: the rows of a backbone forward. `refines`: MRP forwards beside each of them.
    """

    params: DecodingMode
    concurrency: int
    tokens_per_forward: float
    rows: float
    refines: float
    step_ms: float
    tokens_per_second: float


def predict(
    checkpoint: Checkpoint,
    workload: Workload,
    plans: Sequence[DecodingMode],
    concurrency: int,
    prices: Prices,
    costs: StepCosts | None = None,
) -> Iterator[PredictedSpeed]:
    """The plans in their order, the same requests for each. InvalidRequest for plans whose MRP has no price.

    `costs`: the engine's table of costs; None: the prices.
    """
    if prices.steps(1).mrp is None and any(params.needs_mrp for params in plans):
        raise InvalidRequest("a plan needs MRP, for which the shape has no sizes", param="plan")
    tokens, size = concurrency * _TOKENS, checkpoint.config.block_size
    config = EngineConfig(max_running=concurrency, kv_cache_tokens=tokens, prefix_cache=False)
    candidates = config.candidates(checkpoint.config.vocab_size)
    runner = CheckpointRunner(checkpoint, tokens // size, None, candidates)
    stops = frozenset(checkpoint.config.eos_token_ids)
    for params in plans:
        priced = PricedRunner(runner, prices)
        deps = EngineDeps(costs=costs or prices.steps(config.max_rows), runner=lambda *_, priced=priced: priced)
        engine = Engine(checkpoint, config, deps=deps)
        numbers = range(max(workload.fewest, _WAVES * concurrency))
        stats = [done.stats for done in engine.generate(workload.requests(params, numbers, stops))]
        decoded = sum(stat.decoded_tokens for stat in stats)
        yield PredictedSpeed(
            params,
            concurrency,
            decoded / sum(stat.forwards.denoise + stat.forwards.verify for stat in stats),
            priced.rows / priced.forwards,
            priced.refines / priced.forwards,
            1e3 * priced.seconds / priced.forwards,
            decoded / priced.seconds,
        )


if __name__ == "__main__":
    run(command)
