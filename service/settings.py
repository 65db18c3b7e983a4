"""Every setting there is, and the only reader of the environment.

A value comes from, first match wins: a flag or a deployment file's `args` (keyword arguments), a variable
`MRP_SERVE_<NAME>`, the YAML or JSON file named by `config`, the default. An unknown key is an error that
names the nearest known one, wherever it stands. Frozen once made. Knows no model, no Ray, no HTTP.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from service.errors import SettingsError

PREFIX = "MRP_SERVE_"

#: what a hashed API key begins with
DIGEST = "sha256:"

ModeName = Literal["static", "dynamic", "sequential", "entropy", "direct", "speculative", "remask"]
Count = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Settings(BaseSettings):
    """How one service is run. Raises SettingsError naming the key, the value and what is allowed."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    config: Path | None = Field(None, description="YAML or JSON file with any of the settings below")

    # the model
    model: str = Field(str(Path(__file__).parent / "demo"), description="folder or hub name of a checkpoint")
    served_model_name: str | None = Field(None, description="name in answers; default: the last part of `model`")
    device: str = Field("auto", description="auto (cuda if there is one), cpu, cuda, cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="auto: bfloat16 on cuda")
    block_size: Annotated[int, Field(ge=1, le=128)] | None = Field(None, description="overrides the checkpoint's")
    mrp_residual: bool | None = Field(None, description="overrides the checkpoint's")
    mrp_scale: Finite | None = Field(None, description="overrides the checkpoint's")
    default_mode: ModeName | None = Field(None, description="mode of requests that name none; default: speculative")
    quality_file: Path | None = Field(
        None, description="calibration that `quality` is chosen by; default: `quality.json` of the checkpoint"
    )
    torch_threads: Count | None = Field(None, description="CPU threads of a replica; default: half the cores")

    # limits
    max_running: Count = Field(64, description="requests a replica decodes together")
    max_rows: Count = Field(256, description="rows (blocks) of one forward")
    max_prefill_tokens: Count | None = Field(
        None, description="prompt tokens of a step in which others decode; default: 64 on a CPU, else 512"
    )
    kv_cache_tokens: Count = Field(65536, description="tokens the KV cache of a replica holds")
    prefix_cache: bool = Field(
        True, description="requests of one key that begin alike share KV pages, which saves prefill"
    )
    max_model_len: Count | None = Field(None, description="prompt + completion; default: the checkpoint's")
    deterministic: bool = Field(
        False, description="a seed's tokens the same to the bit in any batch and on any like replica; slower"
    )
    attention: Literal["auto", "eager", "triton"] = Field(
        "auto", description="kernels of attention; auto: triton on cuda if it is installed, else eager"
    )
    draft_candidates: Annotated[int, Field(ge=0)] | None = Field(
        None, description="tokens a draft is chosen from; 0: the whole vocabulary; default: 32 of a large one, else all"
    )
    max_waiting: Count = Field(256, description="requests that may wait before 429")
    max_queue_s: Annotated[Finite, Field(gt=0)] = Field(30.0, description="seconds of work that may wait before 429")
    priority_aging_s: Annotated[Finite, Field(gt=0)] = Field(
        10.0, description="seconds of waiting that make up for one priority"
    )
    request_timeout_s: Annotated[Finite, Field(gt=0)] = Field(600.0, description="longest a request may take")
    stall_timeout_s: Annotated[Finite, Field(gt=0)] = Field(
        60.0, description="longest step of the engine before its replica counts as unhealthy"
    )
    drain_timeout_s: Annotated[Finite, Field(ge=0)] = Field(
        30.0, description="at shutdown, longest wait for requests in flight"
    )
    max_body_bytes: Count = Field(1024 * 1024, description="longest request body")

    max_failovers: Annotated[int, Field(ge=0)] = Field(3, description="lost replicas a request survives; 0: none")

    # the server
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="port to listen on")
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        (), repr=False, description="comma-separated keys or `sha256:<hex>`; none and no file: open"
    )
    api_keys_file: Path | None = Field(None, description="YAML list of hashed keys, with names, weights and limits")
    share_prefixes_between_keys: bool = Field(
        False, description="requests of all API keys share KV pages: each key may learn what others have asked"
    )
    num_replicas: Annotated[int, Field(ge=0)] = Field(
        1, description="replicas of the model; the fewest where `max_replicas` is more (0: none while nobody asks)"
    )
    max_replicas: Count | None = Field(
        None, description="the most replicas, as many as the waiting work wants; default: always `num_replicas`"
    )
    target_queue_s: Annotated[Finite, Field(gt=0)] = Field(
        10.0, description="seconds in which the replicas wanted would work off what waits"
    )
    upscale_delay_s: Annotated[Finite, Field(ge=0)] = Field(
        5.0, description="seconds for which more replicas must be wanted before they are started"
    )
    downscale_delay_s: Annotated[Finite, Field(ge=0)] = Field(
        300.0, description="seconds for which fewer replicas must be wanted before some are stopped"
    )
    num_ingresses: Count = Field(
        1, description="processes that take requests; each has an equal share of places and limits"
    )
    routing: Literal["prefix", "load"] = Field(
        "prefix",
        description="prefix: to the replica that has the prompt's beginning; load, or without `prefix_cache`: any",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="of the service and Serve; info: a line for every request"
    )
    log_format: Literal["text", "json"] = Field("text", description="of log lines; json: an object a line")
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None,
        description="OpenTelemetry collector (OTLP over HTTP) that traces are sent to, such as http://localhost:4318",
    )
    log_file: Path | None = Field(None, description="file that log lines are appended to; default: stderr")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_explain(error)) from None

    @property
    def model_name(self) -> str:
        """What answers call the model."""
        return self.served_model_name or self.model.rstrip("/").rpartition("/")[2]

    @property
    def places(self) -> int:
        """Requests a replica takes at once: those it decodes and, so that it never idles, some that wait in it."""
        return self.max_running + max(1, self.max_running // 4)

    def share(self, whole: int) -> int:
        """What of a number that holds for the service each of its ingresses has, so that all have at least it."""
        return -(-whole // self.num_ingresses)

    @property
    def most_replicas(self) -> int:
        """Replicas of the model at most."""
        return self.num_replicas if self.max_replicas is None else self.max_replicas

    @property
    def autoscaled(self) -> bool:
        """Whether the number of replicas follows the work."""
        return self.most_replicas > self.num_replicas

    @model_validator(mode="after")
    def _replicas_fit(self) -> Self:
        if self.max_replicas is None and not self.num_replicas:
            raise SettingsError(
                "num_replicas is 0, which is allowed with max_replicas only: nothing would ever be answered",
                param="num_replicas",
            )
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise SettingsError(
                f"max_replicas is {self.max_replicas}, allowed is num_replicas ({self.num_replicas}) or more",
                param="max_replicas",
            )
        return self

    @field_validator("api_keys", mode="before")
    @classmethod
    def _hashed(cls, value: object) -> object:
        keys = value.split(",") if isinstance(value, str) else value
        if isinstance(keys, (list, tuple)):
            keys = tuple(_digest(key.strip()) if isinstance(key, str) else key for key in keys)
        return keys

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword arguments, then the environment, then the file; all checked for unknown keys."""
        given = init_settings()
        names = [key[len(PREFIX) :].lower() for key in os.environ if key.upper().startswith(PREFIX)]
        _refuse_unknown(given, cls.model_fields, "settings")
        _refuse_unknown(names, cls.model_fields, f"environment ({PREFIX}…)")
        path = given.get("config") or env_settings().get("config")
        content = _read(Path(path)) if path else {}
        _refuse_unknown(content, cls.model_fields, str(path))
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=dict(content))


def nearest(name: str, known: Iterable[str]) -> str:
    """How an error says what an unknown name might have meant: the nearest, or all there are."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _digest(key: str) -> str:
    """A key as its hash, the only form in which it is kept; one that is hashed already stays."""
    if not key:
        raise SettingsError("api_keys has an empty key, allowed are non-empty texts", param="api_keys")
    if not key.startswith(DIGEST):
        return DIGEST + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key.removeprefix(DIGEST)):
        raise SettingsError("api_keys has a sha256:… that is not 64 hexadecimal digits", param="api_keys")
    return key.lower()


def _refuse_unknown(names: Iterable[str], known: Iterable[str], where: str) -> None:
    known = set(known)
    for name in names:
        if name not in known:
            raise SettingsError(f"{where}: {name!r} is not a setting; {nearest(name, known)}", param=name)


def _read(path: Path) -> Mapping[str, Any]:
    """A settings file; JSON is YAML, too."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise SettingsError(f"the settings file {path} is not YAML{line}", param="config") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"the settings file {path} cannot be read: {said}", param="config") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"the settings file {path} must hold `name: value` pairs", param="config")
    return content


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else "settings"
        value = "…" if name == "api_keys" else repr(problem["input"])
        lines.append(f"{name} is {value}: {problem['msg']}")
    return "; ".join(dict.fromkeys(lines))
