"""Whether a smaller model of the same vocabulary drafts better than MRP (SimSD, arXiv 2606.02544), by the engine.

`python -m dev.lab.small_drafts BIG --small DIR --small DIR`: BIG has MRP, each DIR is a backbone with BIG's blocks and
tokens. Wherever the engine asks MRP for a draft, the small model reads the state instead. It has KV pages of its own
for the finished blocks, which it reads beside its next draft. So chains, trees and the price table of `auto` are the
engine's. A made-up drafter is BIG itself at the price of the last DIR, with a known share of right drafts: it shows the
share that a small model needs.

The forwards are counted by network and rows, then priced twice: by the least CPU time of each size here, and by the
bytes and operations of published shapes on a card. The answers of all plans must be those of `static`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.floor import forward_need
from benchmarks.predict import GPUS, Assumptions
from benchmarks.runner_around import RunnerAround
from benchmarks.shapes import config_in_shape, shape_named
from benchmarks.throughput import Workload
from service.calibration.plans import parse_plan
from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.drafting.costs import Curve, StepCosts, measure
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner, ModelRunner, Pending, done, forward_clock
from service.model import Checkpoint, LoadOptions, ModelConfig, load_checkpoint
from service.quality.schema import Plan
from service.text import TextCodec
from training.demo.tasks import draw

_CHAINS = [f"speculative mrp_steps={steps}" for steps in (1, 2, 3)]
_TREES = [
    f"speculative mrp_steps={steps} max_drafts={states}"
    for steps, states in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (3, 3))
]
_FRESH = [f"speculative mrp_steps={count} max_drafts={count}" for count in (1, 2, 3, 6)]
_SELF = [f"speculative mrp_steps=0 max_drafts={states}" for states in (1, 2, 3, 4)]
_AUTO = "speculative mrp_steps=auto"
#: shares of right drafts of the made-up drafter
_AGREEMENTS = (1.0, 0.8)
_MAX_ROWS, _NEW_TOKENS = 64, 96
#: the number of times that a price is measured
_TURNS = 5
#: big and small shapes on a card
_SHAPES = (("sdar-8b", "sdar-1.7b"), ("sdar-30b-a3b", "sdar-1.7b"))
#: layers of the published modules
_MRP_LAYERS = 3

#: forwards by network, rows and sequences
Forwards = Counter[tuple[Network, int, int]]
#: seconds of a forward of a network over rows of a number of sequences
Price = Callable[[Network, int, int], float]


class SmallDraftsRunner(RunnerAround):
    """Reads rows of MRP with the backbone of a small model, on pages of its own with the same numbers.

    `right`: the share of readings whose surest token stays. The others get another token, so that it is a wrong draft.
    """

    def __init__(self, runner: ModelRunner, small: ModelRunner, right: float) -> None:
        super().__init__(runner)
        self._small, self._right, self._rng = small, right, random.Random(3)  # noqa: S311 (nothing secret)

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """A forward of the big or of the small model."""
        if network == "backbone":
            return super().begin(network, rows)
        read = self._small.begin("backbone", [row._replace(anchor=None, drafts=False) for row in rows])
        return lambda: [self._changed(prediction) for prediction in read()]

    def _changed(self, prediction: Prediction) -> Prediction:
        if not prediction.positions or self._rng.random() < self._right:
            return prediction
        tokens, confidences = list(prediction.tokens), prediction.confidences
        surest = max(range(len(tokens)), key=confidences.__getitem__)
        tokens[surest] = (tokens[surest] + 1) % self.config.vocab_size
        return prediction._replace(tokens=tokens)


class CountingRunner(RunnerAround):
    """Counts forwards."""

    def __init__(self, runner: ModelRunner, forwards: Forwards) -> None:
        super().__init__(runner)
        self._forwards = forwards

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """Counts a forward, and begins it."""
        self._forwards[network, len(rows), len({id(row.pages) for row in rows})] += 1
        return super().begin(network, rows)


class AgreementRunner(RunnerAround):
    """Counts how often each source agrees with the backbone, at every state of one request after a block's first.

    `agreements`: by source, the numbers of states at which its surest pick, the position of this pick, and its token at
    the backbone's position are the backbone's.
    """

    def __init__(
        self, runner: ModelRunner, small: Mapping[str, ModelRunner], agreements: dict[str, Counter[str]]
    ) -> None:
        super().__init__(runner)
        self._small, self._agreements = small, agreements
        self._last: tuple[Row, Prediction] | None = None

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """A forward of the backbone. All sources read the same rows."""
        predictions = super().begin(network, rows)()
        read = {name: small.begin("backbone", rows)() for name, small in self._small.items()}
        for index, (row, prediction) in enumerate(zip(rows, predictions, strict=True)):
            if row.writes_kv:
                self._mrp(row, prediction)
            elif prediction.positions:
                self._compare(row, prediction, {name: of_rows[index] for name, of_rows in read.items()})
        return done(predictions)

    def _mrp(self, row: Row, anchor: Prediction) -> Prediction:
        (prediction,) = super().begin("mrp", [row._replace(anchor=anchor.handle)])()
        return prediction

    def _compare(self, row: Row, prediction: Prediction, read: Mapping[str, Prediction]) -> None:
        last, self._last = self._last, (row, prediction)
        if last is None or (last[0].index, id(last[0].pages)) != (row.index, id(row.pages)):
            return
        pick = prediction.most_confident()[0]
        sources = {"self": last[1].restricted_to(row.state), "mrp": self._mrp(row, last[1]), **read}
        for name, source in sources.items():
            drafted, counts = source.most_confident()[0], self._agreements.setdefault(name, Counter())
            token = source.tokens[list(source.positions).index(pick.position)]
            counts["states"] += 1
            counts["pick"] += (drafted.position, drafted.token) == (pick.position, pick.token)
            counts["position"] += drafted.position == pick.position
            counts["token"] += token == pick.token


@dataclass(frozen=True, slots=True)
class Source:
    """A source of drafts. `small`: the small model; None: MRP. `right`: see `SmallDraftsRunner`."""

    name: str
    checkpoint: Checkpoint
    small: Checkpoint | None
    plans: Sequence[str]
    right: float = 1.0

    def runner(self, num_pages: int) -> ModelRunner:
        """The networks, each over so large a cache."""
        runner = CheckpointRunner(self.checkpoint, num_pages)
        if self.small is None:
            return runner
        return SmallDraftsRunner(runner, CheckpointRunner(self.small, num_pages), self.right)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("big", type=Path)
    parser.add_argument("--small", type=Path, action="append", required=True)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--together", type=int, action="append")
    parser.add_argument("--gpu", choices=tuple(GPUS), default="h100")
    parser.add_argument("--shapes", nargs=2, action="append", help="of BIG and of DIR on the card")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources, workload = _sources(options.big, options.small), _workload(options.big, options.problems)
    costs = _measured(sources)
    _print({"prices_ms": "backbone", **_milliseconds(costs["mrp"].backbone)})
    for name, table in costs.items():
        _print({"prices_ms": name, **_milliseconds(table.mrp)})
    for name, counts in _agreements(sources, workload).items():
        shares = {what: round(count / counts["states"], 3) for what, count in counts.items() if what != "states"}
        _print({"agreement": name, **shares, "states": counts["states"]})
    for together in options.together or [1, 8]:
        first = _run(sources[0], workload, "static", together, costs["mrp"])
        for source in sources:
            measured = costs.get(source.name, costs[options.small[-1].name])
            prices = {"cpu": partial(_priced, measured)} | {
                f"{shapes[0]} on {options.gpu}": _card_price(source, shapes, options.gpu)
                for shapes in options.shapes or _SHAPES
            }
            for row, prices_of_row in _rows(source, workload, together, (measured, prices)):
                _print({"together": together, "source": source.name, **_result(row, first, prices_of_row)})


def _rows(
    source: Source, workload: Workload, together: int, by_unit: tuple[StepCosts, dict[str, Price]]
) -> Iterator[tuple[dict[str, Any], dict[str, Price]]]:
    """The plans of a source with their prices. `auto` decides by the prices, so it decodes once for each of them."""
    measured, prices = by_unit
    for plan in source.plans:
        if plan != _AUTO:
            yield _run(source, workload, plan, together, measured), prices
            continue
        for unit, price in prices.items():
            costs = measured if unit == "cpu" else _costs(price)
            yield _run(source, workload, plan, together, costs), {unit: price}


def _workload(folder: Path, count: int) -> Workload:
    rng, codec = random.Random(7), TextCodec.load(folder)  # noqa: S311 (nothing secret)
    prompts = list(dict.fromkeys(draw(rng, heldout=True).prompt for _ in range(3 * count)))[:count]
    return Workload([tuple(codec.encode_message(prompt)) for prompt in prompts], new_tokens=_NEW_TOKENS)


def _sources(big: Path, small: Sequence[Path]) -> list[Source]:
    checkpoint, zero = load_checkpoint(big), load_checkpoint(big, LoadOptions(mrp_zero=True))
    plans = [*_CHAINS, *_TREES, _AUTO]
    sources = [Source("mrp", checkpoint, None, plans), Source("self", zero, None, _SELF)]
    sources += [Source(folder.name, checkpoint, load_checkpoint(folder), plans) for folder in small]
    return sources + [Source(f"right {right}", checkpoint, checkpoint, _FRESH, right) for right in _AGREEMENTS]


def _agreements(sources: Sequence[Source], workload: Workload) -> dict[str, Counter[str]]:
    """How often each source agrees with the backbone along `static`."""
    checkpoint, agreements = sources[0].checkpoint, dict[str, Counter[str]]()

    def runner(_: Checkpoint, pages: int, *__: object) -> ModelRunner:
        small = {
            source.name: CheckpointRunner(source.small, pages)
            for source in sources
            if source.small is not None and source.small is not checkpoint
        }
        return AgreementRunner(CheckpointRunner(checkpoint, pages), small, agreements)

    config = EngineConfig(max_running=1, kv_cache_tokens=512, prefix_cache=False)
    engine = Engine(checkpoint, config, deps=EngineDeps(runner=runner))
    stops = frozenset(checkpoint.config.eos_token_ids)
    engine.generate(workload.requests(parse_plan("static"), range(len(workload.prompts)), stops))
    return agreements


def _measured(sources: Sequence[Source]) -> dict[str, StepCosts]:
    """The least CPU times of several measurements in turns. The backbone's are those of all sources together."""
    clock, tables = forward_clock(torch.device("cpu")), dict[str, list[StepCosts]]()
    for _ in range(_TURNS):
        for source in sources:
            if source.small is not source.checkpoint and source.name != "self":
                runner = source.runner(4 * _MAX_ROWS)
                tables.setdefault(source.name, []).append(measure(runner, _MAX_ROWS, True, clock))
    backbone = _least([costs.backbone for of_source in tables.values() for costs in of_source])
    costs = {
        name: replace(of_source[0], backbone=backbone, mrp=_least([table.mrp for table in of_source if table.mrp]))
        for name, of_source in tables.items()
    }
    return costs | {"self": costs["mrp"]}


def _least(curves: Sequence[Curve]) -> Curve:
    rows = sorted({rows for curve in curves for rows, _ in curve.points})
    return Curve(tuple((count, min(curve.at(count) for curve in curves)) for count in rows))


def _priced(costs: StepCosts, network: Network, rows: int, _sequences: int) -> float:
    curve = costs.backbone if network == "backbone" else costs.mrp
    if curve is None:
        raise ValueError("MRP has no price")
    return curve.at(rows)


def _card_price(source: Source, shapes: tuple[str, str], gpu: str) -> Price:
    """The price on a card. The whole output head is read for the drafts of MRP and of the small model."""
    big = config_in_shape(source.checkpoint, shape_named(shapes[0]))
    small = config_in_shape(source.checkpoint, shape_named(shapes[1]))
    drafter = replace(big, num_layers=_MRP_LAYERS, experts=None) if source.small is None else small
    return partial(_on_card, {"backbone": big, "mrp": drafter}, gpu)


def _on_card(models: dict[Network, ModelConfig], gpu: str, network: Network, rows: int, sequences: int) -> float:
    assumed = Assumptions()
    need = forward_need(models[network], rows, assumed.context, assumed.itemsize, sequences)
    return assumed.forward_s + assumed.above_floor * need.seconds(GPUS[gpu])


def _costs(price: Price) -> StepCosts:
    counts = [1 << power for power in range(_MAX_ROWS.bit_length())]
    networks: tuple[Network, Network] = ("backbone", "mrp")
    curves = [Curve(tuple((rows, price(network, rows, rows)) for rows in counts)) for network in networks]
    return StepCosts(curves[0], curves[1], draft=Assumptions().state_s)


def _run(source: Source, workload: Workload, plan: str, together: int, costs: StepCosts) -> dict[str, Any]:
    """Decodes all prompts by a plan."""
    forwards: Forwards = Counter()
    config = EngineConfig(max_running=together, max_rows=_MAX_ROWS, kv_cache_tokens=together * 512, prefix_cache=False)
    deps = EngineDeps(costs=costs, runner=lambda _, pages, *__: CountingRunner(source.runner(pages), forwards))
    engine = Engine(source.checkpoint, config, deps=deps)
    stops = frozenset(source.checkpoint.config.eos_token_ids)
    made = engine.generate(workload.requests(parse_plan(plan), range(len(workload.prompts)), stops))
    stats = [completion.stats for completion in made]
    return {
        "plan": Plan.from_mode(parse_plan(plan)).name,
        "answers": [completion.token_ids for completion in made],
        "tokens": sum(stat.decoded_tokens for stat in stats),
        "denoise": sum(stat.forwards.denoise + stat.forwards.verify for stat in stats),
        "proposed": sum(stat.drafts_proposed for stat in stats),
        "accepted": sum(stat.drafts_accepted for stat in stats),
        "forwards": forwards,
    }


def _result(row: dict[str, Any], static: dict[str, Any], prices: dict[str, Price]) -> dict[str, Any]:
    drafting = sum(count for (network, *_), count in row["forwards"].items() if network == "mrp")
    return {
        "plan": row["plan"],
        "tokens_per_forward": round(row["tokens"] / row["denoise"], 3),
        "held": round(row["accepted"] / max(1, row["proposed"]), 3),
        "draft_forwards_per_token": round(drafting / row["tokens"], 3),
        "same_as_static": sum(a == b for a, b in zip(row["answers"], static["answers"], strict=True)),
        "times_static": {
            unit: round(_seconds(static, price) / static["tokens"] / (_seconds(row, price) / row["tokens"]), 3)
            for unit, price in prices.items()
        },
    }


def _seconds(row: dict[str, Any], price: Price) -> float:
    return sum(count * price(*key) for key, count in row["forwards"].items())


def _milliseconds(curve: Curve | None) -> dict[int, float]:
    return {rows: round(1e3 * seconds, 2) for rows, seconds in curve.points if rows <= 16} if curve else {}


def _print(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
