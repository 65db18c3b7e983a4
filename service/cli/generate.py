"""`mrp-serve generate PROMPT`: one answer without a server, with its statistics."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict, replace

from service.cli import options as shared
from service.cli.options import Knobs, ModelOptions, with_fields, with_knobs
from service.cli.output import notes
from service.decode.modes import MODES
from service.engine.request import SamplingParams

if TYPE_CHECKING:
    from service.constraints import Constraint
    from service.decode.mode import DecodingMode
    from service.engine import Engine, GenerationRequest
    from service.engine.request import BlockEvent
    from service.model import Checkpoint


@with_knobs
@with_fields("options", ModelOptions)
@with_fields("sampling", SamplingParams, {"temperature", "seed", "logit_bias", "bad_words_token_ids"})
def command(
    prompt: Annotated[str, typer.Argument(help="The user's message, or with --raw the text to continue.")],
    *,
    options: ModelOptions,
    mode: Annotated[str | None, typer.Option(help=f"{', '.join(MODES)}; default: speculative.")] = None,
    quality: Annotated[
        str | None, typer.Option(help="lossless, balanced or fast, instead of a mode and its knobs.")
    ] = None,
    knobs: Knobs = MappingProxyType({}),
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    sampling: SamplingParams,
    bad_word: Annotated[list[str] | None, typer.Option(help="Word that the answer lacks; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Default: random.")] = None,
    schema: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="JSON schema that the answer fits.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="Regular expression that matches the whole answer.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="A text that the answer may be; repeatable.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text instead of answering a message.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    attention: shared.AttentionOption = "auto",
    threads: shared.ThreadsOption = None,
    tensor_parallel_size: shared.RanksOption = 1,
) -> None:
    """Decodes one prompt. Prints the text on stdout, statistics and progress on stderr."""
    from service.constraints.grammars import compile_grammar
    from service.constraints.vocabulary import TokenVocabulary
    from service.engine import Engine, EngineConfig, GenerationRequest
    from service.engine.request import check_text
    from service.errors import InvalidRequest
    from service.text import TextCodec

    if not prompt:
        raise InvalidRequest("the prompt is empty, at least one token is needed", param="prompt")
    constraint = _constraint(schema, regex, choice)
    shared.use_threads(threads, tensor_parallel_size)
    with options.ranks(tensor_parallel_size) as (checkpoint, deps):
        codec = TextCodec.load(checkpoint.path)
        ids = codec.encode(prompt) if raw else codec.encode_message(prompt)
        check_text(ids, checkpoint.config)
        grammar = None
        if constraint is not None:
            grammar = compile_grammar(constraint, TokenVocabulary.for_checkpoint(codec, checkpoint.config))
        request = GenerationRequest(
            "cli",
            tuple(ids),
            _mode(quality, mode, knobs, checkpoint, temperature),
            replace(
                sampling,
                temperature=temperature,
                seed=secrets.randbits(63) if seed is None else seed,
                bad_words_token_ids=codec.encode_bad_words(bad_word or ()),
            ),
            max_new_tokens,
            frozenset(codec.end_tokens(checkpoint.config.eos_token_ids)),
            grammar=grammar,
        )
        events = _run(Engine(checkpoint, EngineConfig(attention=attention), deps=deps), request)
    tokens = [token for event in events for token in event.token_ids]
    _print(request, events[-1], tokens, codec.decode(tokens), as_json)


def _constraint(schema: Path | None, regex: str | None, choice: list[str] | None) -> Constraint | None:
    """The constraint of the answer. InvalidRequest for two of them, SettingsError for a file that is not JSON."""
    from service.constraints import Constraint
    from service.errors import InvalidRequest, SettingsError

    names = [name for name, value in (("schema", schema), ("regex", regex), ("choice", choice)) if value]
    if len(names) > 1:
        raise InvalidRequest(f"{' and '.join(names)} are given, allowed is one of them", param=names[-1])
    if schema:
        try:
            return Constraint.json(json.loads(schema.read_text("utf-8")), "schema")
        except ValueError as error:
            raise SettingsError(f"schema is {schema}, which is not JSON: {error}", param="schema") from error
    if regex:
        return Constraint.regex(regex)
    return Constraint.choice(choice) if choice else None


def _mode(
    quality: str | None, name: str | None, knobs: Knobs, checkpoint: Checkpoint, temperature: float
) -> DecodingMode:
    """The mode of a quality, or of a name and knobs (default: the server's). InvalidRequest if both are given."""
    from service.decode.registry import default_knobs, default_mode, make_mode
    from service.errors import InvalidRequest
    from service.quality.presets import presets_of
    from service.quality.schema import QUALITIES

    config = checkpoint.config
    if not quality:
        name = name or default_mode().name
        defaults = default_knobs(name, config.mrp.default_steps if config.mrp else 0) if name in MODES else {}
        return make_mode(name, {**defaults, **knobs})
    if quality not in QUALITIES:
        raise InvalidRequest(f"quality is {quality!r}, allowed are {', '.join(QUALITIES)}", param="quality")
    if name or knobs:
        other = "mode" if name else next(iter(knobs))
        raise InvalidRequest(f"quality is {quality!r} and {other} is given, allowed is one of them", param="quality")
    presets = presets_of(checkpoint.path, config, None, checkpoint.activation_parts)
    return presets.plans_for(quality, temperature)[0].decoding_mode


def _run(engine: Engine, request: GenerationRequest) -> list[BlockEvent]:
    """Decodes with a progress line on stderr. The costs of forwards are measured before, if drafts depend on them."""
    from service.decode.registry import leaves_drafts_open

    events: list[BlockEvent] = []
    engine.validate(request)
    with notes().status("measuring the cost of forwards …") as status:
        if leaves_drafts_open(request.mode):
            engine.measure_costs()
        status.update("prefill …")
        engine.submit(request)
        while engine.has_work:
            events += engine.step()
            if events:
                stats = events[-1].stats
                status.update(f"{stats.decoded_tokens} tokens, {stats.tokens_per_forward:.2f} a forward")
    return events


def _print(request: GenerationRequest, last: BlockEvent, tokens: list[int], text: str, as_json: bool) -> None:
    from service.quality.schema import knobs_of

    stats, forwards = last.stats, last.stats.forwards
    if as_json:
        answer = {
            "text": text,
            "token_ids": tokens,
            "finish_reason": last.finish_reason,
            "mode": request.mode.name,
            "knobs": knobs_of(request.mode),
            "seed": request.sampling.seed,
            "tokens_per_forward": stats.tokens_per_forward,
            "forwards": asdict(forwards),
            "seconds": stats.total_s,
        }
        print(json.dumps(answer, ensure_ascii=False))
        return
    print(text)
    line = f"{request.mode.name}: {len(tokens)} tokens in {stats.total_s:.2f} s, {last.finish_reason}"
    line += f"; {stats.tokens_per_forward:.2f} tokens a forward ({forwards.denoise} denoise, {forwards.verify} verify"
    line += f", {forwards.mrp} MRP); seed {request.sampling.seed}"
    notes().print(line, style="dim", soft_wrap=True)
