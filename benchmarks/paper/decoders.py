"""Decoders of problems: an engine in this process, or a running service by its URL. Both give the same answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from benchmarks.paper.rows import Row
from service.errors import InvalidRequest, SettingsError

if TYPE_CHECKING:
    from benchmarks.options import ModelOptions
    from service.engine import Engine, GenerationRequest
    from service.model import Checkpoint
    from service.text import TextCodec

#: seconds that a request may take: one answer of 4,096 tokens by a CPU
_TIMEOUT_S = 3600


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `tokens`: decoded tokens, its end included. `forwards`: of the backbone, to denoise and to verify.

    `error`: why the prompt was refused, empty if it was not.
    """

    text: str
    tokens: int = 0
    forwards: int = 0
    error: str = ""


class Decoder(Protocol):
    """Decodes prompts. `model`: its name with a revision. `has_mrp`: whether it serves the modes that need MRP.

    `loading`: the options that it was loaded with, and its device, for the file of the result.
    """

    model: str
    loading: Mapping[str, Any]
    block_size: int
    has_mrp: bool

    def decode(self, prompts: Sequence[str], row: Row, together: int) -> tuple[list[Answer], float]:
        """The answers, with `together` requests at once, and the seconds that all took together."""

    def release(self) -> None:
        """Frees the memory of the model. The next call of `decode` loads it again."""


class EngineDecoder:
    """An engine in this process. It has no prefix cache, so that every row pays for its prefill.

    On a CPU with one thread its seconds are CPU time, which other programs do not change. The checkpoint is loaded when
    it is needed. `block_size`: None for the checkpoint's own.
    """

    def __init__(self, options: ModelOptions, block_size: int | None, max_new_tokens: int) -> None:
        import torch

        from service.model.checkpoint import config_of
        from service.model.files import display_name, read_config, resolve

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
        self._tokens = longest(max_new_tokens, config.max_positions)
        self._engine: Engine | None = None
        self._together = self._room = 0

    def release(self) -> None:
        """As `Decoder.release`."""
        self._engine = None
        self.__dict__.pop("_checkpoint", None)

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return self._options.load()

    @cached_property
    def _codec(self) -> TextCodec:
        from service.text import TextCodec

        return TextCodec.load(self._checkpoint.path)

    def decode(self, prompts: Sequence[str], row: Row, together: int) -> tuple[list[Answer], float]:
        """As `Decoder.decode`."""
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
        import torch

        is_alone = self._checkpoint.device.type == "cpu" and torch.get_num_threads() == 1
        return time.thread_time if is_alone else time.perf_counter

    def _engine_for(self, requests: Sequence[GenerationRequest], together: int) -> Engine:
        """An engine for `together` requests at once, with a KV cache that has room for the longest of these."""
        from service.engine import Engine, EngineConfig

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
        from service.engine import GenerationRequest, SamplingParams

        has_chat = self._codec.template.problem is None
        ids = self._codec.encode_message(prompt) if has_chat else self._codec.encode(prompt)
        ends = frozenset(self._checkpoint.config.eos_token_ids)
        return GenerationRequest(str(number), tuple(ids), row.mode, SamplingParams(), self._tokens, ends)


class ServiceDecoder:
    """A running service. Each row has its own part of the prefix cache, so that every row pays for its prefill."""

    loading: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, url: str, max_new_tokens: int, api_key: str = "") -> None:
        self._url, self._headers = url.rstrip("/"), {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            answer = httpx.get(f"{self._url}/v1/models", headers=self._headers, timeout=30)
            card = answer.raise_for_status().json()["data"][0]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise SettingsError(f"url is {url!r}, where no service answers: {error}", param="url") from error
        self.model, self.block_size = card["weights"]["model"], card["block_size"]
        self.has_mrp, self._has_chat = card["mrp"] is not None, card["chat_template"]
        self._tokens = longest(max_new_tokens, card["max_model_len"])

    def decode(self, prompts: Sequence[str], row: Row, together: int) -> tuple[list[Answer], float]:
        """As `Decoder.decode`. SettingsError if the service cannot be reached or fails."""
        began = time.perf_counter()
        answers = asyncio.run(self._all(prompts, row, together))
        return answers, time.perf_counter() - began

    def release(self) -> None:
        """As `Decoder.release`. The service keeps its model."""

    async def _all(self, prompts: Sequence[str], row: Row, together: int) -> list[Answer]:
        limit = asyncio.Semaphore(together)
        client = httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=_TIMEOUT_S)

        async def limited(prompt: str) -> Answer:
            async with limit:
                return await self._ask(client, prompt, row, together)

        async with client:
            try:
                return await asyncio.gather(*map(limited, prompts))
            except httpx.TransportError as error:
                raise SettingsError(f"url is {self._url!r}, where no service answers: {error}", param="url") from error

    async def _ask(self, client: httpx.AsyncClient, prompt: str, row: Row, together: int) -> Answer:
        content: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt}]} if self._has_chat else {"prompt": prompt}
        )
        fields = {"max_new_tokens": self._tokens, "temperature": 0, "cache_salt": f"{row.name} {together}"}
        response = await client.post("/generate", json=content | row.fields | fields)
        body = response.json()
        if response.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
            return Answer("", error=body["error"]["message"])
        if response.is_error:
            raise SettingsError(f"the service answers {response.status_code}: {body['error']['message']}", param="url")
        stats = body["stats"]
        forwards = stats["forwards"]["denoise"] + stats["forwards"]["verify"]
        return Answer(body["text"], round(stats["tokens_per_forward"] * forwards), forwards)


def longest(max_new_tokens: int, max_model_len: int) -> int:
    """The most tokens of an answer: half of the model's length is left to the prompt."""
    return min(max_new_tokens, max_model_len // 2)
