"""Decodes problems by an engine in this process."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from benchmarks.options import ModelOptions
from benchmarks.paper.rows import Row
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.errors import InvalidRequest
from service.model import Checkpoint
from service.model.checkpoint import config_of
from service.model.files import display_name, read_config, resolve
from service.text import TextCodec


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `tokens`: decoded tokens, its end included. `forwards`: of the backbone, to denoise and to verify.

    `error`: why the prompt was refused, empty if it was not.
    """

    text: str
    tokens: int = 0
    forwards: int = 0
    error: str = ""


class EngineDecoder:
    """An engine in this process. It has no prefix cache, so that every row pays for its prefill.

    On a CPU with one thread its seconds are CPU time, which other programs do not change. The checkpoint is loaded when
    it is needed. `block_size`: None for the checkpoint's own. `model`: its name with a revision. `has_mrp`: whether it
    decodes the modes that need MRP. `loading`: the options that it is loaded with, for the file of the result.
    """

    def __init__(self, options: ModelOptions, block_size: int | None, max_new_tokens: int) -> None:
        path = resolve(options.name)
        self._options = options if block_size is None else replace(options, block_size=block_size)
        loading = self._options.loading
        config = config_of(read_config(path), loading)
        self.loading: Mapping[str, Any] = {
            "device": torch.cuda.get_device_name() if loading.device.startswith("cuda") else loading.device,
            "dtype": str(loading.dtype).removeprefix("torch."),
            "block_size": options.block_size,
            "mrp_residual": loading.mrp_residual,
            "mrp_scale": loading.mrp_scale,
            "quantization": loading.quantization,
        }
        self.model, self.block_size, self.has_mrp = display_name(path), config.block_size, config.mrp is not None
        self._tokens = min(max_new_tokens, config.max_positions // 2)  # half of the length is left to the prompt
        self._engine: Engine | None = None
        self._together = self._room = 0

    def release(self) -> None:
        """Frees the memory of the model. The next call of `decode` loads it again."""
        self._engine = None
        self.__dict__.pop("_checkpoint", None)

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return self._options.load()

    @cached_property
    def _codec(self) -> TextCodec:
        return TextCodec.load(self._checkpoint.path)

    def decode(self, prompts: Sequence[str], row: Row, together: int) -> tuple[list[Answer], float]:
        """The answers, with `together` requests at once, and the seconds that all took together."""
        requests = [self._request(number, prompt, row) for number, prompt in enumerate(prompts)]
        engine, answers = self._engine_for(requests, together), dict[str, Answer]()
        for request in requests:
            try:
                engine.validate(request)
            except InvalidRequest as error:
                answers[request.request_id] = Answer("", error=error.message)
        accepted = [request for request in requests if request.request_id not in answers]
        clock = self._clock()
        began = clock()
        completions = engine.generate(accepted)
        seconds = clock() - began
        for request, completion in zip(accepted, completions, strict=True):
            counts, text = completion.stats.forwards, self._codec.decode(completion.token_ids)
            tokens = completion.stats.decoded_tokens
            answers[request.request_id] = Answer(text, tokens, counts.denoise + counts.verify)
        return [answers[request.request_id] for request in requests], seconds

    def _clock(self) -> Callable[[], float]:
        is_alone = self._checkpoint.device.type == "cpu" and torch.get_num_threads() == 1
        return time.thread_time if is_alone else time.perf_counter

    def _engine_for(self, requests: Sequence[GenerationRequest], together: int) -> Engine:
        """An engine for `together` requests at once, with a KV cache that has room for the longest of these."""
        limit = self._checkpoint.config.max_positions
        longest_request = min(limit, max(len(request.prompt_token_ids) for request in requests) + self._tokens)
        room = together * (longest_request + 2 * self.block_size)
        if self._engine is None or self._together != together or self._room < room:
            self._engine = None  # its cache makes room for the next one
            config = EngineConfig(together, kv_cache_tokens=room, prefix_cache=False)
            self._engine, self._together, self._room = Engine(self._checkpoint, config), together, room
            self._engine.prepare()
        return self._engine

    def _request(self, number: int, prompt: str, row: Row) -> GenerationRequest:
        has_chat = self._codec.template.problem is None
        ids = self._codec.encode_message(prompt) if has_chat else self._codec.encode(prompt)
        ends = frozenset(self._checkpoint.config.eos_token_ids)
        return GenerationRequest(str(number), tuple(ids), row.mode, SamplingParams(), self._tokens, ends)
