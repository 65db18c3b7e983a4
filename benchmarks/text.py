"""`python -m benchmarks.text`: continuations of Python code by every mode, judged without labels.

A passage begins at a statement of a file that the demo's training has not seen. The file's own continuation is the
first row. Differences are from the first plan, pair by pair.
"""

import ast
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import files
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from benchmarks import options as cli
from benchmarks.evaluate import default_variants, engines_for, parse_variant
from benchmarks.evaluation import Score, evaluate
from benchmarks.judges import Interval, LikelihoodJudge, distinct_bigrams, mean_difference, parses
from benchmarks.machine import machine_name
from service.engine import SamplingParams
from service.errors import SettingsError
from service.model.files import display_name
from service.quality.calibration.prompts import PromptTask
from service.text import TextCodec
from training.demo.text import library_files

#: packages under the MIT or BSD licences, which this project needs anyway; no training reads them
_PACKAGES = ("fastapi", "httpx", "pydantic", "starlette", "typer", "uvicorn")
#: characters of a prompt at least, and of a passage at most
_PROMPT, _PASSAGE = 128, 2000
#: the beginning of a passage
_NAME = re.compile(r"^((?:def|class) )(\w+)")


@dataclass(frozen=True, slots=True)
class Passage:
    """The beginning of a statement in a source file, and the text after it."""

    prompt: str
    continuation: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judges say of the continuations of one plan, in the order of the passages.

    `valid`: 1.0 or 0.0. `nats`: the negative log-likelihood per character, None without a judge.
    """

    valid: list[float]
    bigrams: list[float]
    nats: list[float] | None


@cli.with_fields("options", cli.ModelOptions)
def command(
    options: cli.ModelOptions,
    source: Annotated[
        Literal["library", "packages", "copies", "edits"],
        typer.Option(
            help="Files of Python's library that the demo's training leaves out, installed packages, or passages of "
            "the library that begin once more, as edits with another name."
        ),
    ] = "library",
    passages: Annotated[int, typer.Option(min=1, help="Passages that are continued.")] = 200,
    plan: Annotated[list[str] | None, typer.Option(help="As of `python -m benchmarks.evaluate`.")] = None,
    judge: Annotated[
        Path | None, typer.Option(help="Causal language model, a folder or a GGUF file, for the likelihood.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 64,
    together: Annotated[int, typer.Option(min=1, help="Requests decoded together.")] = 8,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of passages and of sampling.")] = 0,
    threads: cli.ThreadsOption = None,
    output: cli.OutputOption = None,
) -> None:
    """Measures tokens per forward and the quality of continuations of Python code, for every mode."""
    variants = [parse_variant(words) for words in plan or ()]
    drawn = draw(passages, seed, package_files() if source == "packages" else library_files(heldout=True))
    if source in {"copies", "edits"}:
        drawn = [begun_again(passage, renamed=source == "edits") for passage in drawn]
    cli.use_threads(threads)
    checkpoint = options.load()
    variants = variants or default_variants(with_mrp=checkpoint.mrp is not None)
    codec, likelihood = TextCodec.load(checkpoint.path), LikelihoodJudge(judge) if judge else None
    tasks = [PromptTask(tuple(codec.encode(passage.prompt)), lambda _: False) for passage in drawn]
    engines, sampling = engines_for(variants, checkpoint, options.loading), SamplingParams(temperature, seed=seed)
    with cli.Counter(len(tasks) * len(variants)) as counter:
        for latest in evaluate(engines, tasks, variants, sampling, (max_new_tokens, together)):
            scores = latest
            counter.reach(sum(len(score.completions) for score in scores), "continuations")
    texts: list[Sequence[int]] = [codec.encode(passage.continuation)[:max_new_tokens] for passage in drawn]
    answers: list[list[Sequence[int]]] = [
        [completion.token_ids for completion in score.completions] for score in scores
    ]
    judgements = [judged(drawn, tokens, codec, likelihood) for tokens in (texts, *answers)]
    rows = [_row(score, judgement, judgements[1]) for score, judgement in zip([None, *scores], judgements, strict=True)]
    content: dict[str, Any] = {"source": source, "passages": passages, "seed": seed, "temperature": temperature}
    content |= {"max_new_tokens": max_new_tokens, "judge": judge.name if judge else None}
    content |= {"machine": machine_name(checkpoint.device), "model": display_name(checkpoint.path), "rows": rows}
    cli.write_rows(output, content)
    cli.results().print(_table(rows))


def package_files() -> Iterator[str]:
    """The text of the source files of some installed packages."""
    for package in _PACKAGES:
        for path in files(package) or ():
            if path.suffix == ".py":
                yield path.read_text(encoding="utf-8")


def draw(count: int, seed: int, texts: Iterable[str]) -> list[Passage]:
    """`count` different passages from random texts. SettingsError, which names `passages`, if there are fewer."""
    available = sorted({passage for text in texts for passage in _passages(text)}, key=lambda passage: passage.prompt)
    if count > len(available):
        raise SettingsError(f"passages is {count}, allowed are 1 to {len(available)}", param="passages")
    return random.Random(seed).sample(available, count)


def begun_again(passage: Passage, *, renamed: bool = False) -> Passage:
    """A passage as a prompt that ends with its own first line, as an edited file does. The rest of it follows.

    `renamed`: the function or class has another name in the last line.
    """
    text = passage.prompt + passage.continuation[:_PROMPT].rpartition("\n")[0] + "\n"
    first, rest = text.split("\n", 1)
    if renamed:
        first = _NAME.sub(r"\1new_\2", first)
    return Passage(f"{text}\n\n{first}\n", rest)


def _passages(text: str) -> Iterator[Passage]:
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return
    lines = text.splitlines(keepends=True)
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            passage = "".join(lines[statement.lineno - 1 : statement.end_lineno])[:_PASSAGE]
            end = passage.find("\n", _PROMPT) + 1
            if end and len(passage) - end > _PROMPT:
                yield Passage(passage[:end], passage[end:])


def judged(
    passages: Sequence[Passage], answers: Sequence[Sequence[int]], codec: TextCodec, likelihood: LikelihoodJudge | None
) -> Judgement:
    """Judges one continuation of each passage, as token ids."""
    pairs = [(passage.prompt, codec.decode(tokens)) for passage, tokens in zip(passages, answers, strict=True)]
    nats = [likelihood.nats_per_character(*pair) for pair in pairs] if likelihood else None
    return Judgement([float(parses(*pair)) for pair in pairs], [distinct_bigrams(tokens) for tokens in answers], nats)


def _row(score: Score | None, judgement: Judgement, first: Judgement) -> dict[str, Any]:
    """One plan's row; without a score the row of the files' own text. `first`: the first plan's judgement."""
    row: dict[str, Any] = {"plan": "the file's own text", "engine": None}
    if score:
        row = {
            "plan": score.variant.name,
            "engine": score.variant.engine,
            "tokens_per_forward": score.tokens_per_forward,
            "tokens_per_cpu_second": score.tokens_per_cpu_second,
            "same_as_first_plan": score.same_as_first,
        }
    for name, values in asdict(judgement).items():
        if values is not None:
            row[name] = mean_difference(values, [0.0] * len(values)).mean
            row[f"{name}_difference"] = mean_difference(values, getattr(first, name))
    return row


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    lines = cli.table(
        "mode", "engine", "tokens/forward", "tokens/CPU s", "valid", "difference", "nats/character", "difference",
        "distinct bigrams", "difference", plan="mode",
    )  # fmt: skip
    for row in rows:
        cells = [row["plan"], row["engine"] or "-"]
        cells += [_number(row.get("tokens_per_forward")), _number(row.get("tokens_per_cpu_second"), 0)]
        for name in ("valid", "nats", "bigrams"):
            cells += [_number(row.get(name), 3), _difference(row.get(f"{name}_difference"))]
        lines.add_row(*cells)
    return lines


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _difference(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


if __name__ == "__main__":
    cli.run(command)
