"""How fast a published shape would be on a device that is not here: a prediction from bytes and operations.

A small checkpoint decodes with the real engine, so schedules, drafts and acceptance are real. For each of its forwards
the time is added up that the shape would take on the device. `mrp_steps: "auto"` decides by those times, too. Nothing
of it is measured on the device. Knows no files and no command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from service.bench.floor import Rates, forward_need
from service.bench.loads import Workload
from service.decode.mode import DecodingMode
from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner, ModelRunner, Pending
from service.errors import InvalidRequest
from service.model import Checkpoint, ModelConfig

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


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the data sheet of a device does not say.

    `above_floor`: a forward's time over the least that it can take. `forward_s`: what each forward takes besides, to be
    started and to be read. `request_s`: the host's time for a request in a step. `state_s`: its time to find a state to
    draft. `context`: tokens that each row reads besides its own. `itemsize`: bytes of a weight.
    """

    above_floor: float = 1.25
    forward_s: float = 200e-6
    request_s: float = 20e-6
    state_s: float = 20e-6
    context: int = 256
    itemsize: int = 2


class Prices:
    """The predicted seconds of a shape's forwards on a device. `request_s`: of the host for a request in a step."""

    def __init__(self, shape: ModelConfig, device: Rates, assumed: Assumptions) -> None:
        self._shape, self._device, self._assumed = shape, device, assumed
        self.request_s = assumed.request_s
        layers = shape.mrp.num_layers if shape.mrp else 0
        self._mrp = replace(shape, num_layers=layers, experts=None) if layers else None

    def backbone(self, rows: int, sequences: int) -> float:
        """A forward over rows of so many sequences."""
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


class PricedRunner:
    """Does what another runner does, and adds up what it would take. A `ModelRunner`."""

    def __init__(self, runner: ModelRunner, prices: Prices) -> None:
        self._runner, self._prices = runner, prices
        self.config, self.device = runner.config, runner.device
        self.seconds, self.forwards, self.rows, self.refines = 0.0, 0, 0, 0

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._runner.num_pages

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """A forward over rows; the backbone's counts the host's work for their requests, too."""
        sequences = _sequences(rows)
        if network == "backbone":
            self.seconds += self._prices.backbone(len(rows), sequences) + self._prices.request_s * sequences
            self.forwards, self.rows = self.forwards + 1, self.rows + len(rows)
        else:
            self.seconds += self._prices.mrp(len(rows), sequences)
            self.refines += 1
        return self._runner.begin(network, rows)


def _sequences(rows: Sequence[Row]) -> int:
    """How many sequences the rows belong to: rows of one sequence have the same list of pages."""
    return len({id(row.pages) for row in rows})


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """One plan with so many requests at once. `step_ms`: a backbone forward with its MRP forwards and host work.

    `rows`: those of a backbone forward. `refines`: MRP forwards beside each of them.
    """

    params: DecodingMode
    concurrency: int
    tokens_per_forward: float
    rows: float
    refines: float
    step_ms: float
    tokens_per_second: float


def predict(
    checkpoint: Checkpoint, workload: Workload, plans: Sequence[DecodingMode], concurrency: int, prices: Prices
) -> Iterator[PredictedSpeed]:
    """The plans in their order, the same requests for each. InvalidRequest for plans whose MRP has no price."""
    if prices.steps(1).mrp is None and any(params.needs_mrp for params in plans):
        raise InvalidRequest("a plan needs MRP, for which the shape has no sizes", param="plan")
    tokens, size = concurrency * _TOKENS, checkpoint.config.block_size
    config = replace(EngineConfig(), max_running=concurrency, kv_cache_tokens=tokens, prefix_cache=False)
    candidates = config.candidates(checkpoint.config.vocab_size)
    runner = CheckpointRunner(checkpoint, tokens // size, None, candidates)
    stops = frozenset(checkpoint.config.eos_token_ids)
    for params in plans:
        priced = PricedRunner(runner, prices)
        deps = EngineDeps(costs=prices.steps(config.max_rows), runner=lambda *_, priced=priced: priced)
        engine = Engine(checkpoint, config, deps=deps)
        places = range(max(workload.fewest, _WAVES * concurrency))
        stats = [done.stats for done in engine.generate(workload.requests(params, places, stops))]
        decoded = sum(one.decoded_tokens for one in stats)
        yield PredictedSpeed(
            params,
            concurrency,
            decoded / sum(one.forwards.denoise + one.forwards.verify for one in stats),
            priced.rows / priced.forwards,
            priced.refines / priced.forwards,
            1e3 * priced.seconds / priced.forwards,
            decoded / priced.seconds,
        )
