"""`python -m benchmarks.online`: drafts before and after MRP has learnt from answers of one kind.

The engine answers by `static`, in batches. The trainer gets as much CPU time as the engine had, no more, as on a second
core. A better module is adopted at once. The further requests that are measured are no samples.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from benchmarks import options as cli
from benchmarks.evaluation import Score, Variant, evaluate
from benchmarks.text import package_files
from service.decode.modes import Speculative, Static
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.model import Checkpoint
from service.quality.calibration.prompts import PromptTask
from service.text import TextCodec
from training.demo.tasks import KINDS
from training.demo.text import PROMPT, library_files
from training.online import OnlineOptions, OnlineTrainer, Sample

Kind = Literal["story", "form", "code", "python", "packages", "prose"]

_TOGETHER = 32
_NEW_TOKENS = 32
#: answers after which drafts are measured, beside the last one
_MARKS = (1000, 2000, 3000)
_PLANS = (Static(), Speculative(0, 4), Speculative(2), Speculative(2, 4))
#: updates between two judgements, as in `training/online_loop.py`
_JUDGE_EVERY = 32


@cli.with_fields("options", cli.ModelOptions)
def command(
    options: cli.ModelOptions,
    kind: Annotated[Kind, typer.Option(help="What is asked.")] = "python",
    answers: Annotated[int, typer.Option(min=1)] = 5000,
    share: Annotated[float, typer.Option(help="The trainer's CPU time, as a share of the engine's.")] = 1.0,
    requests: Annotated[int, typer.Option(min=1, help="Requests that are measured.")] = 200,
    rate: Annotated[float, typer.Option(help="The learning rate.")] = OnlineOptions().rate,
    output: cli.OutputOption = None,
) -> None:
    """Measures accepted drafts a forward before, while and after MRP learns from the answers it serves."""
    cli.use_threads(1)
    checkpoint = options.load()
    trainer = OnlineTrainer(checkpoint, OnlineOptions(rate=rate))
    prompts = _prompts(kind, TextCodec.load(checkpoint.path))
    heldout = [next(prompts) for _ in range(requests)]
    rows = [_measure(checkpoint, heldout) | {"answers": 0}]
    _say(rows[-1])
    engine = Engine(checkpoint, EngineConfig(max_running=_TOGETHER, prefix_cache=False))
    served = trained = updates = done = 0.0
    versions = refused = 0
    marks = [mark for mark in _MARKS if mark < answers] + [answers]
    while done < answers:
        begin = time.process_time()
        trainer.add(_answered(engine, [next(prompts) for _ in range(_TOGETHER)]))
        served += time.process_time() - begin
        done += _TOGETHER
        while trained < share * served and trainer.is_ready:
            begin = time.process_time()
            trainer.update()
            updates += 1
            if updates % _JUDGE_EVERY == 0:
                judgement = trainer.judge()
                _say({"answers": done, "updates": updates, "judgement": judgement})
                if judgement.is_better:
                    trainer.adopt()
                    versions += 1
                else:
                    refused += 1
            trained += time.process_time() - begin
        if marks and done >= marks[0]:
            work = {
                "updates": int(updates),
                "versions": versions,
                "refused": refused,
                "served_s": served,
                "trained_s": trained,
            }
            rows.append(_measure(checkpoint, heldout) | {"answers": marks.pop(0)} | work)
            _say(rows[-1])
    cli.write_rows(output, {"kind": kind, "rate": rate, "share": share, "rows": rows})


def _prompts(kind: Kind, codec: TextCodec) -> Iterator[list[int]]:
    """Endless prompts, each once as far as there are as many."""
    rng = random.Random(f"online/{kind}")
    if kind in ("story", "form", "code"):
        while True:
            yield codec.encode_message(KINDS[kind](rng))
    files = {"python": lambda: library_files(heldout=True), "packages": package_files, "prose": _prose}[kind]()
    texts = [tokens for text in files if len(tokens := codec.encode(text)) > PROMPT]
    starts = [(n, at) for n, tokens in enumerate(texts) for at in range(0, len(tokens) - PROMPT, PROMPT)]
    while True:
        for number, at in rng.sample(starts, len(starts)):
            yield texts[number][at : at + PROMPT]


def _answered(engine: Engine, prompts: list[list[int]]) -> Iterator[Sample]:
    stops = frozenset(engine.model.eos_token_ids)
    requests = [
        GenerationRequest(str(index), tuple(prompt), Static(), max_new_tokens=_NEW_TOKENS, stop_token_ids=stops)
        for index, prompt in enumerate(prompts)
    ]
    for prompt, completion in zip(prompts, engine.generate(requests), strict=True):
        yield Sample((*prompt, *completion.token_ids), len(prompt))


def _measure(checkpoint: Checkpoint, prompts: list[list[int]]) -> dict[str, Any]:
    engines = {"mrp": Engine(checkpoint, EngineConfig(prefix_cache=False))}
    tasks = [PromptTask(tuple(prompt), lambda _: False) for prompt in prompts]
    *_, scores = evaluate(engines, tasks, [Variant(mode) for mode in _PLANS], SamplingParams(), (_NEW_TOKENS, 8))
    return {score.variant.name: _numbers(score) for score in scores}


def _numbers(score: Score) -> dict[str, Any]:
    stats = [completion.stats for completion in score.completions]
    forwards = sum(each.forwards.denoise + each.forwards.verify for each in stats)
    return {
        "accepted_per_forward": sum(each.drafts_accepted for each in stats) / forwards,
        "tokens_per_forward": score.tokens_per_forward,
        "same": score.same_as_first,
    }


def _prose() -> Iterator[str]:
    """The texts of this repository's documents."""
    for file in sorted(Path("docs").glob("*.md")):
        yield file.read_text(encoding="utf-8")


def _say(row: dict[str, Any]) -> None:
    cli.results().print(row)


if __name__ == "__main__":
    cli.run(command)
