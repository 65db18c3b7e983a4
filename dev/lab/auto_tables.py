"""`python -m dev.lab.auto_tables`: `auto` beside fixed drafts on the demo, in the time of tables and not of a clock.

Every forward counts by its rows and a measured table, so the result is exact and does not depend on the machine. The
fixed plans' forwards do not depend on the table. They are decoded once for each number of requests.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from service.bench.evaluation import Plan
from service.cli.options import heldout, load, use_threads
from service.cli.output import results
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner, ModelRunner, Pending
from service.model import Checkpoint
from service.text import TextCodec

#: Milliseconds of forwards of the backbone and of MRP over 1, 2, 4, … rows, as performance-log.md and performance.md
#: have them. In the first two four rows are dear. Finding a state takes .02 ms.
TABLES = {
    "SDAR-1.7B, two threads": ((202, 287, 642, 873, 1945), (58, 89, 243, 335, 595)),
    "demo, performance.md": ((2.06, 2.61, 5.11, 6.58, 11.7, 23.7, 47.2), (1.71, 2.25, 3.76, 6.49, 10.1, 19.6, 39.1)),
    "demo, third edition": ((2.22, 3.15, 4.46, 7.25, 12.7, 24.3, 59.1), (2.05, 2.77, 3.60, 5.92, 10.5, 19.3, 50.8)),
}
FIXED = (Static(), *(Speculative(0, states) for states in (1, 2, 3, 4)), Speculative(1), Speculative(1, 4))


class Done(NamedTuple):
    """What a plan did: its tokens, its answers, and how many forwards of the backbone and of MRP had how many rows."""

    tokens: int
    answers: list[tuple[int, ...]]
    backbone: Counter[int]
    mrp: Counter[int]

    def seconds(self, costs: StepCosts) -> float:
        """The table's time for a token."""
        spent = sum(count * costs.backbone.at(rows) for rows, count in self.backbone.items())
        refined = sum(count * costs.mrp.at(rows) for rows, count in self.mrp.items()) if costs.mrp else 0.0
        return (spent + refined) / self.tokens


class Counting:
    """A runner that counts its forwards by their rows. A `ModelRunner`."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self.config, self.device = runner, runner.config, runner.device
        self.num_pages = runner.num_pages
        self.backbone, self.mrp = Counter[int](), Counter[int]()

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """A forward over rows."""
        (self.backbone if network == "backbone" else self.mrp)[len(rows)] += 1
        return self._runner.begin(network, rows)


class Asked(NamedTuple):
    """The problems' prompts, and what samples their answers."""

    checkpoint: Checkpoint
    prompts: list[tuple[int, ...]]
    temperature: float

    def decode(self, params: DecodingMode, together: int, costs: StepCosts) -> Done:
        """All problems by one plan, so many at once."""
        made = list[Counting]()

        def runner(*given: Any) -> Counting:
            made.append(Counting(CheckpointRunner(*given)))
            return made[0]

        config = EngineConfig(max_running=together, kv_cache_tokens=together * 512, prefix_cache=False)
        engine = Engine(self.checkpoint, config, deps=EngineDeps(costs=costs, runner=runner))
        stops = frozenset(self.checkpoint.config.eos_token_ids)
        done = engine.generate(
            GenerationRequest(
                str(number), prompt, params, SamplingParams(self.temperature, seed=number), max_new_tokens=96,
                stop_token_ids=stops,
            )
            for number, prompt in enumerate(self.prompts)
        )  # fmt: skip
        tokens = sum(one.stats.decoded_tokens for one in done)
        return Done(tokens, [one.token_ids for one in done], made[0].backbone, made[0].mrp)


def main(
    problems: Annotated[int, typer.Option(help="Held-out problems.")] = 96,
    together: Annotated[list[int], typer.Option(help="Requests at once.")] = [1, 4, 8, 16],  # noqa: B006
    temperature: Annotated[float, typer.Option()] = 0.0,
    seed: Annotated[int, typer.Option(help="Which problems.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Writes the rows as JSON.")] = None,
) -> None:
    """Prints how many times as fast as `static` `auto` and the best fixed plan are."""
    use_threads(1)
    checkpoint = load(None, "cpu", "float32", None)
    codec = TextCodec.load(checkpoint.path)
    chats = [[{"role": "user", "content": one.prompt}] for one in heldout(problems, "problems", seed=seed)]
    asked = Asked(checkpoint, [tuple(codec.encode_chat(chat)) for chat in chats], temperature)
    rows = list[dict[str, Any]]()
    for count in together:
        known = {Plan(params).name: asked.decode(params, count, _costs("demo, performance.md")) for params in FIXED}
        for name in TABLES:
            rows.append(_row(name, count, known, asked.decode(Speculative(), count, _costs(name))))
            results().print(json.dumps(rows[-1]), markup=False, soft_wrap=True, highlight=False)
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _row(name: str, together: int, known: dict[str, Done], auto: Done) -> dict[str, Any]:
    costs, plain = _costs(name), known[Plan(Static()).name]
    if auto.answers != plain.answers:
        raise AssertionError("drafts changed an answer")
    faster = {plan: plain.seconds(costs) / done.seconds(costs) for plan, done in known.items()}
    best, own = max(faster, key=lambda plan: faster[plan]), plain.seconds(costs) / auto.seconds(costs)
    named = {plan: round(ratio, 4) for plan, ratio in faster.items()}
    return {"table": name, "together": together, "auto": round(own, 4), "of_best": round(own / faster[best], 4)} | named


def _costs(name: str) -> StepCosts:
    curves = [Curve(tuple((1 << power, float(time)) for power, time in enumerate(times))) for times in TABLES[name]]
    return StepCosts(*curves, draft=0.02)


if __name__ == "__main__":
    typer.run(main)
