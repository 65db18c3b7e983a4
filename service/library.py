"""A checkpoint as a Python library: text in, text out, without Ray and HTTP. `Engine` is the layer below.

model = TextModel.load("service/demo")
answer = model.chat([{"role": "user", "content": "What is 12 + 5?"}], mode="speculative", mrp_steps=4)
print(answer.text)

It has the fields and errors of POST /generate. The package `mrp_serve` has the names of this module.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from msgspec.structs import replace

from service.api.parse import check_min_tokens, constraint_of, mode_of, parse_generate, sampling_of
from service.api.protocol import Json, PromptBody
from service.constraints.grammars import compile_grammar
from service.constraints.vocabulary import TokenVocabulary
from service.decode.canvas import CompiledGrammar
from service.decode.mode import DecodingMode
from service.decode.modes import KNOBS
from service.decode.registry import default_knobs, default_mode, served_modes
from service.demo import CHECKPOINT
from service.engine import BlockEvent, Completion, Engine, EngineConfig, GenerationRequest
from service.engine.request import Sharing, check_text
from service.errors import InvalidRequest
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.device import pick_device, pick_dtype, settle_threads
from service.quality.presets import Presets, presets_of
from service.settings.defaults import DEFAULT_MAX_TOKENS
from service.text import TextCodec
from service.text.detokenizer import TextStream

#: a text to continue, token ids to continue, or messages (`role`, `content`) to answer
PromptType = str | Sequence[int] | Sequence[Mapping[str, str]]
#: a mode by its name, or an object with its knobs, of a class of your own, too; None: the program's default
ModeType = str | DecodingMode | None


@dataclass(frozen=True, slots=True)
class TextCompletion:
    """An answer as text, and its tokens and statistics."""

    text: str
    completion: Completion


@dataclass(frozen=True, slots=True)
class StreamedBlock:
    """The next part of a streamed answer: its text, and the event of its block. The last has a `finish_reason`."""

    text: str
    event: BlockEvent


class TextModel:
    """A checkpoint with its tokenizer and an engine. Not thread-safe."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig | None = None) -> None:
        self.checkpoint = checkpoint
        self.codec = TextCodec.load(checkpoint.path)
        self.engine = Engine(checkpoint, config)
        self.codec.limit_to(self.engine.max_model_len)
        model = checkpoint.config
        modes = served_modes(has_mrp=model.mrp is not None, causal=model.causal)
        steps = model.mrp.default_steps if model.mrp else 0
        self._knobs = {name: default_knobs(name, steps) for name in modes}

    @classmethod
    def load(
        cls,
        name: str | Path = CHECKPOINT,
        config: EngineConfig | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
    ) -> TextModel:
        """Loads a checkpoint by folder or hub name, by default the demo, and measures the costs of its forwards.

        `device`, `dtype`: as the settings of these names. `threads`: as in `settle_threads`. For other options of
        loading, call `load_checkpoint` and make a `TextModel` of the result. CheckpointError or SettingsError.
        """
        settle_threads(threads)
        device = pick_device(device)
        model = cls(load_checkpoint(name, LoadOptions(pick_dtype(dtype, device), device)), config)
        model.engine.measure_costs()  # else the first request with `mrp_steps` "auto" would wait for them
        return model

    @overload
    def generate(self, prompts: str, mode: ModeType = None, **fields: Any) -> TextCompletion: ...

    @overload
    def generate(self, prompts: Iterable[PromptType], mode: ModeType = None, **fields: Any) -> list[TextCompletion]: ...

    def generate(
        self, prompts: str | Iterable[PromptType], mode: ModeType = None, **fields: Any
    ) -> TextCompletion | list[TextCompletion]:
        """Decodes prompts together and returns their answers in order. One text has one answer.

        `fields`: knobs of the mode, `temperature`, `max_tokens`, `stop`, `regex` and the other fields of POST
        /generate, with the same defaults. InvalidRequest for a wrong prompt, field or value.
        """
        single = isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable)
        items: list[Any] = [prompts] if single else list(prompts)
        completions = self._completions([_named(prompt) for prompt in items], mode, fields)
        return completions[0] if single else completions

    def chat(self, messages: Sequence[Mapping[str, str]], mode: ModeType = None, **fields: Any) -> TextCompletion:
        """The answer to messages (`role`, `content`). Otherwise as `generate`."""
        [answer] = self._completions([{"messages": _plain(messages)}], mode, fields)
        return answer

    def stream(self, prompt: PromptType, mode: ModeType = None, **fields: Any) -> Generator[StreamedBlock]:
        """The answer to one prompt, block by block. Closing the iterator ends the request. Otherwise as `generate`."""
        return (block for _, block in self._blocks([_named(prompt)], mode, fields))

    def _completions(self, prompts: Sequence[Json], mode: ModeType, fields: Json) -> list[TextCompletion]:
        answers: list[list[StreamedBlock]] = [[] for _ in prompts]
        for index, block in self._blocks(prompts, mode, fields):
            answers[index].append(block)
        return [_completion(str(index), blocks) for index, blocks in enumerate(answers)]

    def _blocks(self, prompts: Sequence[Json], mode: ModeType, fields: Json) -> Generator[tuple[int, StreamedBlock]]:
        """The blocks of all answers as they are decoded, each with the index of its prompt. `prompts`: their fields."""
        mode_object = mode if isinstance(mode, DecodingMode) else None
        if mode_object is not None:
            _check_alone(mode_object, fields)
        plan = {"mode": mode if mode_object is None else None}
        bodies = [parse_generate(dict(prompt, **plan, **fields), default_mode().name, PromptBody) for prompt in prompts]
        constraint = constraint_of(bodies[0]) if bodies else None
        grammar = compile_grammar(constraint, self._vocabulary) if constraint else None
        requests = [self._request(str(index), body, mode_object, grammar) for index, body in enumerate(bodies)]
        for request in requests:
            self.engine.validate(request)
        texts = [self.codec.stream(body.stop or (), body.min_tokens) for body in bodies]
        return self._decoded(requests, texts)

    def _decoded(
        self, requests: Sequence[GenerationRequest], texts: Sequence[TextStream]
    ) -> Generator[tuple[int, StreamedBlock]]:
        if self.engine.has_work:
            raise InvalidRequest("an answer of this model is still streamed; read it to its end or close it")
        try:
            for request in requests:
                self.engine.enqueue(request)
            while self.engine.has_work:
                for event in self.engine.step():
                    if not (text := texts[index := int(event.request_id)]).stopped:
                        yield index, self._block(event, text, constrained=requests[index].grammar is not None)
        finally:  # an error, an interrupt, a closed stream: no request may stay for the next call
            for request in requests:
                self.engine.abort(request.request_id)

    def _block(self, event: BlockEvent, text: TextStream, *, constrained: bool) -> StreamedBlock:
        if event.error is not None:
            raise event.error
        piece, token_ids = text.push(event.token_ids)
        if text.stopped:
            self.engine.abort(event.request_id)
            met = False if constrained else None  # the stop text cut the answer
            event = replace(event, token_ids=token_ids, finish_reason="stop", constraint_met=met)
        return StreamedBlock(piece + text.finish() if event.finish_reason else piece, event)

    def _request(
        self, request_id: str, body: PromptBody, mode_object: DecodingMode | None, grammar: CompiledGrammar | None
    ) -> GenerationRequest:
        tokens = self._tokens(body)
        mode, plans = mode_of(body, default_mode().name, self._knobs, self._presets)
        ends = () if body.ignore_eos else self.codec.end_tokens(self.checkpoint.config.eos_token_ids)
        limit = body.limit or max(1, min(DEFAULT_MAX_TOKENS, self.engine.max_model_len - len(tokens)))
        check_min_tokens(body, limit)
        words = self.codec.encode_bad_words(body.bad_words)
        return GenerationRequest(
            request_id,
            tokens,
            mode if mode_object is None else mode_object,
            plans=plans,
            sampling=replace(sampling_of(body), bad_words_token_ids=words),
            max_new_tokens=limit,
            stop_token_ids=frozenset({*body.stop_token_ids, *ends}),
            timeout_s=body.timeout_s,
            sharing=Sharing(priority=body.priority, cache_salt=body.cache_salt or ""),
            grammar=grammar,
        )

    def _tokens(self, body: PromptBody) -> tuple[int, ...]:
        if body.prompt_token_ids is not None:
            return tuple(body.prompt_token_ids)
        if body.messages is not None:
            tokens = self.codec.encode_chat([message.model_dump() for message in body.messages])
        else:
            tokens = self.codec.encode(body.prompt or "")
        check_text(tokens, self.checkpoint.config, "prompt" if body.messages is None else "messages")
        return tuple(tokens)

    @cached_property
    def _presets(self) -> Presets:
        checkpoint = self.checkpoint
        return presets_of(checkpoint.path, checkpoint.config, None, checkpoint.activation_parts)

    @cached_property
    def _vocabulary(self) -> TokenVocabulary:
        return TokenVocabulary.for_checkpoint(self.codec, self.checkpoint.config)


def _check_alone(mode: DecodingMode, fields: Json) -> None:
    """InvalidRequest for a knob or a quality beside a mode's object, which has its knobs."""
    for name in ("quality", *KNOBS):
        if fields.get(name) is not None:
            raise InvalidRequest(
                f"{name} is {fields[name]!r} beside the mode {mode!r}, which has its knobs", param=name
            )


def _named(prompt: PromptType) -> Json:
    """A prompt in its field of POST /generate."""
    items = _plain(prompt)
    if not isinstance(items, list):
        return {"prompt": items}
    return {"prompt_token_ids" if items and isinstance(items[0], int) else "messages": items}


def _plain(prompt: object) -> object:
    """A sequence as JSON has it. Another value stays, and the body's schema refuses a wrong one."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return prompt
    return [dict(item) if isinstance(item, Mapping) else item for item in prompt]


def _completion(request_id: str, blocks: Sequence[StreamedBlock]) -> TextCompletion:
    events = tuple(block.event for block in blocks)
    last, tokens = events[-1], tuple(token for event in events for token in event.token_ids)
    reason = last.finish_reason or "abort"
    completion = Completion(request_id, tokens, reason, last.stats, events, last.constraint_met)
    return TextCompletion("".join(block.text for block in blocks), completion)
