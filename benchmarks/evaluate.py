"""`python -m benchmarks.evaluate`: accuracy, tokens per forward and time of every mode on held-out problems."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks import options as cli
from benchmarks.evaluation import Score, Variant, evaluate
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.engine import Engine, EngineConfig, SamplingParams
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.attention.pages import AUTO, PAGE_FORMS
from service.model.files import display_name
from service.model.quantization.schemes import QUANT_SCHEMES
from service.quality.calibration.plans import parse_plan
from service.quality.calibration.prompts import demo, tasks_of
from service.text import TextCodec

#: the modes that are tried by default: few, so that the table can be read
_MODES: tuple[DecodingMode, ...] = (
    Static(),
    *map(Dynamic, (0.3, 0.5, 0.7, 0.9)),
    *(Sequential(entropy_bound=bound) for bound in (0.1, 1.0)),
    *map(Entropy, (0.1, 1.0)),
    *map(Direct, (1, 2)),
    Direct(2, 0.6),
    *map(Speculative, (1, 2, 4)),
    *map(Remask, (0.3, 0.5, 0.7, 0.9)),
)
#: the forms of KV pages, as engines of variants
_PAGES = PAGE_FORMS.keys() - {AUTO}


@cli.with_fields("options", cli.ModelOptions)
def command(
    options: cli.ModelOptions,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems, drawn without repetition.")] = 300,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as 'speculative mrp_steps=4'; may be given again. With `zero` at the end, MRP's output is set"
            " to 0. With `fp8` or `w8a8`, the layers' matrices are kept so. With `int8`, KV pages are. Default: all."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    together: Annotated[int, typer.Option(min=1, help="Requests decoded together.")] = 8,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of problems and of sampling.")] = 0,
    threads: cli.ThreadsOption = None,
    draft_candidates: Annotated[
        int | None, typer.Option(min=0, help="Tokens from which a draft is chosen. 0: the whole vocabulary.")
    ] = None,
    output: cli.OutputOption = None,
) -> None:
    """Measures accuracy, tokens per forward and time of every mode, with MRP and with its output set to zero."""
    variants = [parse_variant(words) for words in plan or ()]
    lines = [{"prompt": problem.prompt} for problem in cli.heldout(problems, seed)]
    cli.use_threads(threads)
    checkpoint = options.load()
    variants = variants or default_variants(with_mrp=checkpoint.mrp is not None)
    engines = engines_for(variants, checkpoint, options.loading, draft_candidates)
    tasks = tasks_of(TextCodec.load(checkpoint.path), lines, demo)
    with cli.Counter(len(tasks) * len(variants)) as counter:
        limits_of_all = max_new_tokens, together
        for latest in evaluate(engines, tasks, variants, SamplingParams(temperature, seed=seed), limits_of_all):
            scores, done = latest, [len(score.completions) for score in latest]
            counter.reach(sum(done), f"answers; {min(done)} of {len(tasks)} prompts by every plan")
            if min(done) == max(done):
                cli.write_rows(output, [_row(score) | {"model": display_name(checkpoint.path)} for score in latest])
    cli.results().print(_table(scores))


def parse_variant(text: str) -> Variant:
    """The variant of `mode knob=value …`, with the engine's name at the end if it is not `mrp`."""
    plan, _, last = text.rpartition(" ")
    engines = {"zero", *QUANT_SCHEMES, *_PAGES}
    return Variant(parse_plan(plan), last) if last in engines else Variant(parse_plan(text))


def default_variants(*, with_mrp: bool) -> list[Variant]:
    """Static first. A mode that needs MRP is also tried with MRP's output set to zero."""
    plans = list(_MODES)
    if not with_mrp:
        plans = [mode for mode in plans if not mode.needs_mrp]
        plans += [Speculative(0, drafts) for drafts in (1, 4)]
    return [Variant(mode, engine) for mode in plans for engine in (("mrp", "zero") if mode.needs_mrp else ("mrp",))]


def engines_for(
    variants: Sequence[Variant], checkpoint: Checkpoint, options: LoadOptions, draft_candidates: int | None = None
) -> dict[str, Engine]:
    """The engines of the variants by name, `mrp` among them. `options`: the options that the checkpoint has."""
    # Every plan decodes the same prompts. Without the prefix cache, every plan pays for them.
    config = EngineConfig(prefix_cache=False, draft_candidates=draft_candidates)
    engines = {"mrp": Engine(checkpoint, config)}
    names = {variant.engine for variant in variants} - {"mrp"}
    engines |= {name: Engine(checkpoint, replace(config, kv_cache_dtype=name)) for name in names & _PAGES}
    for name in names - _PAGES:
        changed = options if name == "zero" else replace(options, quantization=name)
        other = load_checkpoint(checkpoint.path, changed)
        if name == "zero" and other.mrp is not None:
            other.mrp.scale = 0.0
        engines[name] = Engine(other, config)
    return engines


def _row(score: Score) -> dict[str, Any]:
    return {
        "plan": score.variant.name,
        "engine": score.variant.engine,
        "problems": len(score.completions),
        "accuracy": score.accuracy,
        "tokens_per_forward": score.tokens_per_forward,
        "mrp_per_forward": score.mrp_per_forward,
        "tokens_per_published_forward": score.tokens_per_published_forward,
        "milliseconds_per_token": score.milliseconds_per_token,
        "tokens_per_cpu_second": score.tokens_per_cpu_second,
        "same_as_first_plan": score.same_as_first,
        "acceptance": score.acceptance,
    }


def _table(scores: list[Score]) -> Table:
    rows = cli.table(
        "mode",
        "engine",
        "accuracy",
        "tokens/forward",
        "MRP/forward",
        "ms/token",
        "same as first",
        "accepted",
        plan="mode",
    )
    for score in scores:
        plain = score.variant.engine == "mrp" and not score.variant.mode.needs_mrp
        rows.add_row(
            score.variant.name,
            "-" if plain else score.variant.engine,
            f"{score.accuracy:.3f}",
            f"{score.tokens_per_forward:.2f}",
            f"{score.mrp_per_forward:.2f}",
            f"{score.milliseconds_per_token:.2f}",
            f"{score.same_as_first}/{len(score.completions)}",
            "-" if score.acceptance is None else f"{score.acceptance:.2f}",
        )
    return rows


if __name__ == "__main__":
    cli.run(command)
