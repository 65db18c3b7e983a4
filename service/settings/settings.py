"""All settings. This module alone reads `MRP_SERVE_…` variables. Users of Ray and torch read their variables.

A value comes from the first of these that has it: a flag or a deployment file's `args` (keyword arguments), the
variable `MRP_SERVE_<NAME>`, the YAML or JSON file named by `config`, the default. An unknown key in any of them is an
error that names the nearest known key. Some settings have other programs' names as well (`settings/sources.py`).
Settings are frozen.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from service.decode.modes import MODES
from service.errors import SettingsError
from service.settings import defaults
from service.settings.sources import by_setting, read_settings

PREFIX = "MRP_SERVE_"

#: where `mrp-serve serve` reads the log lines of its processes (`telemetry/logs.py`)
LOG_PIPE = f"{PREFIX}LOG_PIPE"
#: variables of a process that are no settings -> their meaning, empty for a variable of the program itself
VARIABLES = {
    f"{PREFIX}TORCH_THREADS": "CPU threads of each of a replica's processes; default: half the cores, shared by them",
    f"{PREFIX}TORCH_PROFILER_DIR": "folder for a trace by torch.profiler: each engine writes one, of 16 steps after "
    "its first 64; these steps are slow",
    LOG_PIPE: "",
}

#: the beginning of a hashed API key
DIGEST = "sha256:"
#: the name that stands for any name of the model
ANY_NAME = "*"

if TYPE_CHECKING:
    ModeName = str
else:
    ModeName = Literal[tuple(MODES)]
PositiveInt = Annotated[int, Field(ge=1)]
Fitting = PositiveInt | Literal["auto"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


#: panel of `--help` and section of docs/settings.md -> its first setting; the settings are declared in this order
SECTIONS = {
    "Model": "config",
    "Speed": "tensor_parallel_size",
    "Limits": "max_model_len",
    "Security": "host",
    "Scaling": "num_replicas",
    "Logs": "log_level",
}


class Settings(BaseSettings):
    """The settings of one service. SettingsError names the key, the value and the allowed values."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # Model
    config: Path | None = Field(None, description="YAML or JSON file with any of these settings")
    model: str = Field(
        str(Path(__file__).parent.parent / "demo"),
        description="folder or hub name of a checkpoint; owner/name@revision pins it",
    )
    revision: str | None = Field(None, description="commit, tag or branch of the hub name, instead of `@revision`")
    served_model_name: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="comma-separated names that requests may use, the first one for answers; `*`: any name; default: "
        "the last part of `model`",
    )
    device: str = Field("auto", description="auto (cuda if there is one), cpu, cuda, cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="auto: bfloat16 on cuda")
    quantization: Literal["fp8", "w8a8"] | None = Field(
        None, description="keeps the layers' matrices in 8 bits, which changes answers; calibrate again"
    )
    block_size: Annotated[int, Field(ge=1, le=128)] | None = Field(
        None, description="overrides the checkpoint's block size"
    )
    default_mode: ModeName | None = Field(None, description="mode of requests that name none; default: speculative")
    quality_file: Path | None = Field(
        None, description="calibration that defines `quality`; default: `quality.json` of the checkpoint"
    )

    # Speed
    tensor_parallel_size: PositiveInt = Field(
        1,
        description="devices of one machine that hold a replica's model together; it must divide heads and inner sizes",
    )
    gpu_memory_utilization: Annotated[Finite, Field(gt=0, le=1)] = Field(
        0.9, description="share of a GPU's memory that `auto` may use, weights included; on a CPU: share of free memory"
    )
    max_num_seqs: Fitting = Field(
        "auto",
        description="requests that a replica decodes at once; auto: as memory allows, at most "
        f"{defaults.MAX_RUNNING_CPU} (GPU: {defaults.MAX_RUNNING_GPU})",
    )
    max_rows: Fitting = Field("auto", description="rows (blocks) of one forward; auto: by device and free memory")
    max_prefill_tokens: PositiveInt | None = Field(
        None,
        description="prompt tokens in a step that also decodes; default: "
        f"{defaults.PREFILL_TOKENS_CPU} on a CPU, else {defaults.PREFILL_TOKENS_GPU}",
    )
    kv_cache_tokens: Fitting = Field(
        "auto",
        description="size of a replica's KV cache in tokens; auto: as memory allows, on a CPU at most "
        f"{defaults.KV_CACHE_TOKENS_CPU}",
    )
    kv_cache_dtype: Literal["auto", "int8"] = Field(
        "auto",
        description="form of KV pages; auto: the `dtype`; int8: 8 bits with a scale for each token and head, 1.8 to 2 "
        "times the tokens in the same memory, which changes answers",
    )
    enable_prefix_caching: bool = Field(
        True, description="requests of one API key with a common prefix share KV pages, which saves prefill"
    )
    attention_backend: Literal["auto", "eager", "triton"] = Field(
        "auto", description="kernels of attention; auto: triton on cuda if it is installed, else eager"
    )
    cuda_graphs: Literal["auto", "off"] = Field(
        "auto", description="auto: on cuda, forwards are captured once for each size and replayed (attention triton)"
    )
    online_mrp_dir: Path | None = Field(
        None,
        description="folder for versions of MRP, which then learns from requests; every machine of the service needs "
        "access to it; default: MRP does not learn",
    )
    deterministic: bool = Field(
        False, description="same seed, same tokens: in any batch and on any equal replica; slower"
    )

    # Limits
    max_model_len: PositiveInt | None = Field(
        None, description="the most tokens of prompt and completion together; default: the checkpoint's limit"
    )
    default_max_tokens: PositiveInt = Field(
        defaults.DEFAULT_MAX_TOKENS,
        description="longest answer of a request without a limit, such as `max_tokens`; also at most the rest of the "
        "context",
    )
    max_waiting: PositiveInt = Field(defaults.MAX_WAITING, description="waiting requests before 429")
    max_queue_s: Annotated[Finite, Field(gt=0)] = Field(30.0, description="seconds of waiting work before 429")
    request_timeout_s: Annotated[Finite, Field(gt=0)] = Field(600.0, description="longest request, in seconds")
    drain_timeout_s: Annotated[Finite, Field(ge=0)] = Field(
        30.0, description="at shutdown, longest wait for requests in progress, in seconds"
    )
    max_body_bytes: PositiveInt = Field(1024 * 1024, description="longest request body, in bytes")

    # Security
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="port to listen on")
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        (), repr=False, description="comma-separated keys or `sha256:<hex>`; no keys and no key file: open"
    )
    api_keys_file: Path | None = Field(None, description="YAML list of hashed keys, with names, weights and limits")
    admin_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        repr=False,
        description="comma-separated keys for `/admin/…` and `/reset_prefix_cache`; no keys: there are no such routes",
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="comma-separated origins of web pages that may use the service (CORS), such as "
        "`https://chat.example`; `*`: any page; default: none",
    )
    share_prefixes_between_keys: bool = Field(
        False, description="requests of all API keys share KV pages; a key can then find out prompts of other keys"
    )

    # Scaling
    num_replicas: Annotated[int, Field(ge=0)] = Field(
        1, description="replicas of the model; the minimum if `max_replicas` is larger (0: none without requests)"
    )
    max_replicas: PositiveInt | None = Field(
        None, description="maximum of replicas, whose number then follows the work; default: always `num_replicas`"
    )
    api_server_count: PositiveInt = Field(
        1,
        description="processes that take requests, each with an equal share of slots and limits; `mrp-serve serve`: a "
        "single one listens itself, several are behind Serve's proxy",
    )
    max_failovers: Annotated[int, Field(ge=0)] = Field(3, description="replicas that a request may lose; 0: none")

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="log level of the service and of Serve; info: a line for every request"
    )
    log_format: Literal["text", "json"] = Field("text", description="form of log lines; json: one object per line")
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None,
        description="OpenTelemetry collector (OTLP over HTTP) that gets the traces, such as http://localhost:4318",
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_explain(error)) from None

    @property
    def model_names(self) -> tuple[str, ...]:
        names = tuple(name for name in self.served_model_name if name != ANY_NAME)
        return names or (self.model.rstrip("/").rpartition("/")[2].partition("@")[0],)

    @property
    def model_name(self) -> str:
        return self.model_names[0]

    @property
    def slots(self) -> int:
        """The most requests that a replica takes at once. With `max_num_seqs: auto` it may take fewer."""
        limit = defaults.MAX_RUNNING_GPU if self.device.startswith("cuda") else defaults.MAX_RUNNING_CPU
        return slots_of(limit if self.max_num_seqs == "auto" else self.max_num_seqs)

    def per_ingress(self, total: int) -> int:
        """An ingress's part of a limit of the whole service, rounded up."""
        return -(-total // self.api_server_count)

    @property
    def max_num_replicas(self) -> int:
        return self.num_replicas if self.max_replicas is None else self.max_replicas

    @property
    def autoscaled(self) -> bool:
        return self.max_num_replicas > self.num_replicas

    @property
    def ingress_listens(self) -> bool:
        """Whether the ingress of `mrp-serve serve` takes connections itself. One process listens on a port."""
        return self.api_server_count == 1

    def to_json(self) -> str:
        """The settings for another process of this service, without keys."""
        return self.model_dump_json(exclude={"api_keys", "admin_keys"})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that `to_json` wrote. Neither the environment nor a file is read."""
        settings = cls.__new__(cls)
        cls.__pydantic_validator__.validate_json(text, self_instance=settings)
        return settings

    @model_validator(mode="before")
    @classmethod
    def _with_revision(cls, values: Any) -> Any:
        """Writes `revision` into `model`. SettingsError if the model is a folder, or has another revision."""
        if not isinstance(values, dict) or not (revision := values.get("revision")):
            return values
        model = str(values.get("model", cls.model_fields["model"].default))
        repository, _, pin = model.partition("@")
        if pin not in ("", revision) or Path(model).expanduser().is_dir():
            reason = f"model has the revision {pin!r}" if pin else f"model is the folder {model}"
            raise SettingsError(f"revision is {revision!r}, but {reason}", param="revision")
        return {**values, "model": f"{repository}@{revision}", "revision": None}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.tensor_parallel_size > 1 and self.device not in {"auto", "cpu", "cuda"}:
            raise SettingsError(
                f"device is {self.device!r}, which is one device, and tensor_parallel_size is "
                f"{self.tensor_parallel_size}; allowed are then auto, cpu and cuda",
                param="device",
            )
        if self.online_mrp_dir is not None:
            self._check_learning()
        if self.max_replicas is None and not self.num_replicas:
            raise SettingsError(
                "num_replicas is 0, which is allowed with max_replicas only: no request would ever be answered",
                param="num_replicas",
            )
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise SettingsError(
                f"max_replicas is {self.max_replicas}, allowed is num_replicas ({self.num_replicas}) or more",
                param="max_replicas",
            )
        return self

    def _check_learning(self) -> None:
        """SettingsError if keys share nothing, since one MRP learns from the texts of all, or for 8-bit matrices."""
        if (self.api_keys or self.api_keys_file) and not self.share_prefixes_between_keys:
            raise SettingsError(
                f"online_mrp_dir is {str(self.online_mrp_dir)!r}: one MRP learns from the texts of all API keys, so "
                "drafts of a key tell of the others' texts; with API keys, share_prefixes_between_keys must be true",
                param="online_mrp_dir",
            )
        if self.quantization:
            raise SettingsError(
                f"online_mrp_dir is {str(self.online_mrp_dir)!r} and quantization is {self.quantization!r}: MRP learns "
                "from wide matrices only",
                param="online_mrp_dir",
            )

    @field_validator("served_model_name", "allowed_origins", "api_keys", "admin_keys", mode="before")
    @classmethod
    def _split(cls, value: object, about: ValidationInfo) -> object:
        """The texts of a list with commas. Of a key only its hash is kept; a hash stays as it is."""
        texts = value.split(",") if isinstance(value, str) else () if value is None else value
        if not isinstance(texts, (list, tuple)):
            return texts
        texts = tuple(text.strip() if isinstance(text, str) else text for text in texts)
        name, are_keys = about.field_name, str(about.field_name).endswith("_keys")
        if "" in texts:
            kind = "key, allowed are non-empty texts" if are_keys else "name"
            raise SettingsError(f"{name} has an empty {kind}", param=name)
        return tuple(_digest(text, name) if isinstance(text, str) else text for text in texts) if are_keys else texts

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword arguments, then the environment, then the file. All are checked for unknown keys."""
        chosen = [key for key in os.environ if key.upper().startswith(PREFIX) and key not in VARIABLES]
        variables = {key[len(PREFIX) :].lower(): os.environ[key] for key in chosen}
        arguments = by_setting(init_settings(), cls.model_fields, "settings")
        environment = by_setting(variables, cls.model_fields, f"environment ({PREFIX}…)")
        path = arguments.get("config") or environment.get("config")
        content = by_setting(read_settings(Path(path)) if path else {}, cls.model_fields, str(path))
        return tuple(
            InitSettingsSource(settings_cls, init_kwargs=values) for values in (arguments, environment, content)
        )


def section_of(setting: str) -> str:
    """The section of `SECTIONS` that a setting belongs to."""
    names = list(Settings.model_fields)
    return [title for title, first in SECTIONS.items() if names.index(first) <= names.index(setting)][-1]


def torch_threads() -> int | None:
    """CPU threads by `MRP_SERVE_TORCH_THREADS`, None: half the cores, shared. Ray sets `OMP_NUM_THREADS` itself."""
    threads = os.environ.get(f"{PREFIX}TORCH_THREADS")
    if threads is not None and (not threads.isdecimal() or not int(threads)):
        raise SettingsError(f"{PREFIX}TORCH_THREADS is {threads!r}, expected a whole number, at least 1")
    return None if threads is None else int(threads)


def torch_profiler_dir() -> Path | None:
    """The folder for a trace by torch.profiler, by `MRP_SERVE_TORCH_PROFILER_DIR`."""
    folder = os.environ.get(f"{PREFIX}TORCH_PROFILER_DIR")
    return Path(folder) if folder else None


def slots_of(max_running: int) -> int:
    """Requests that a replica takes at once. It decodes `max_running`; a few more wait in it, so it never idles."""
    return max_running + max(1, max_running // 4)


def _digest(key: str, setting: str | None) -> str:
    if not key.startswith(DIGEST):
        return DIGEST + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key.removeprefix(DIGEST)):
        raise SettingsError(f"{setting} has a sha256:… that is not 64 hexadecimal digits", param=setting)
    return key.lower()


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else "settings"
        value = "…" if name in {"api_keys", "admin_keys"} else repr(problem["input"])
        lines.append(f"{name} is {value}: {problem['msg']}")
    return "; ".join(dict.fromkeys(lines))
