"""Checkpoints on disk: finding, reading and writing safetensors in the published layout.

A checkpoint is a local folder or a hub name. Only safetensors are read, single or sharded; never
pickle, never remote code. Every weight must be there, be used and have its shape. Called by
`load_checkpoint`'s users (the engine's owner, the command line) and by training, which saves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from service.errors import CheckpointError
from service.model.config import ModelConfig, parse_config
from service.model.mrp import Mrp
from service.model.sdar import Sdar

#: model_type in config.json -> backbone class. A new family is one file and one line here.
FAMILIES: dict[str, type[Sdar]] = {"sdar": Sdar}

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_MRP_PREFIX = "mrp_modules.0.model."
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What an operator may say about loading. None keeps the checkpoint's own value."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    block_size: int | None = None
    mrp_residual: bool | None = None
    mrp_scale: float | None = None
    mrp_zero: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint. `mrp` is None for a bare backbone; `raw` is the parsed config.json."""

    path: Path
    config: ModelConfig
    raw: Mapping[str, Any]
    backbone: Sdar
    mrp: Mrp | None

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.backbone.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return self.backbone.embed_tokens.weight.dtype


def load_checkpoint(name: str | Path, options: LoadOptions | None = None) -> Checkpoint:
    """Loads a backbone and, if the checkpoint has one, its MRP module.

    `name`: a folder, or a hub name such as `heavyball/sdar-1.7b-mrp-3lyr`. Raises CheckpointError
    naming the file, key or weight that is missing, not used or of another shape.
    """
    options = options or LoadOptions()
    path = resolve(name)
    raw = read_config(path)
    config = _override(parse_config(raw, block_size=options.block_size), options)
    with torch.device("meta"):
        backbone = FAMILIES[raw["model_type"]](config)
        mrp = Mrp(config, config.mrp) if config.mrp else None
    with ExitStack() as stack:
        _fill(_Weights(path, config, _open(path, stack)), backbone, mrp, options.dtype)
    if config.tie_word_embeddings:
        backbone.lm_head.weight = backbone.embed_tokens.weight
    modules = [module for module in (backbone, mrp) if module is not None]
    for module in modules:
        module.to(device=options.device, dtype=options.dtype).eval().requires_grad_(False)
    if mrp is not None and options.mrp_zero:
        mrp.scale = 0.0
    return Checkpoint(path=path, config=config, raw=raw, backbone=backbone, mrp=mrp)


def resolve(name: str | Path) -> Path:
    """The local folder of a checkpoint; a hub name is downloaded (or found in the local hub cache)."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if str(name).count("/") != 1 or str(name).startswith((".", "/", "~")):
        raise CheckpointError(f"{str(name)!r} is neither a folder nor a hub name such as 'owner/model'")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(_FILES)))
    except Exception as error:  # the hub client raises many unrelated types
        raise CheckpointError(f"{str(name)!r} could not be fetched from the hub: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """The parsed config.json of a checkpoint folder, its family checked."""
    try:
        raw = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} has no config.json") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}/config.json cannot be read: {error}") from error
    if not isinstance(raw, dict) or raw.get("model_type") not in FAMILIES:
        kind = raw.get("model_type") if isinstance(raw, dict) else None
        raise CheckpointError(f"{path}/config.json: model_type is {kind!r}, supported are {sorted(FAMILIES)}")
    return raw | {"eos_token_id": _end_tokens(path, raw)}


def _end_tokens(path: Path, raw: Mapping[str, Any]) -> list[int] | int | None:
    """config.json's end tokens and generation_config.json's: chat checkpoints name their turn's end only there."""
    own = raw.get("eos_token_id")
    file = path / "generation_config.json"
    if not file.is_file():
        return own
    try:
        more = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    lists = [[] if value is None else value if isinstance(value, list) else [value] for value in (own, more)]
    return list(dict.fromkeys(lists[0] + lists[1]))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All weights of a checkpoint folder under their published names, on the CPU, as stored."""
    with ExitStack() as stack:
        return {name: file.get_tensor(name) for name, file in _open(path, stack).items()}


def save_checkpoint(path: Path, raw: Mapping[str, Any], backbone: Sdar, mrp: Mrp | None) -> None:
    """Writes config.json and one model.safetensors in the published layout, in the modules' dtype."""
    path.mkdir(parents=True, exist_ok=True)
    config = parse_config(raw)
    state: dict[str, Tensor] = {}
    for target, names in _targets(backbone, mrp):
        parts = target.split(_heights(config, names, target.shape[0]))
        state |= {name: part.detach().cpu().contiguous().clone() for name, part in zip(names, parts, strict=True)}
    if raw.get("tie_word_embeddings"):
        state.pop("lm_head.weight", None)
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(dict(raw), indent=1) + "\n", encoding="utf-8")


def _override(config: ModelConfig, options: LoadOptions) -> ModelConfig:
    if config.mrp is None:
        return config
    residual = config.mrp.residual if options.mrp_residual is None else options.mrp_residual
    scale = config.mrp.scale if options.mrp_scale is None else options.mrp_scale
    return replace(config, mrp=replace(config.mrp, residual=residual, scale=scale))


def _targets(backbone: nn.Module, mrp: nn.Module | None) -> Iterator[tuple[nn.Parameter, list[str]]]:
    """Every parameter with the published names it is made of."""
    for name, parameter in backbone.named_parameters():
        yield parameter, _published(name if name.startswith("lm_head") else f"model.{name}")
    for name, parameter in mrp.named_parameters() if mrp else ():
        yield parameter, _published(_MRP_PREFIX + name)


def _published(name: str) -> list[str]:
    for fused, parts in _FUSED.items():
        if fused in name:
            return [name.replace(fused, part) for part in parts]
    return [name]


def _heights(config: ModelConfig, names: list[str], rows: int) -> list[int]:
    """How many of a fused matrix's rows each published weight gives."""
    if len(names) == len(_FUSED["qkv_proj"]):
        return [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    return [rows // len(names)] * len(names)


def _fill(weights: _Weights, backbone: Sdar, mrp: Mrp | None, dtype: torch.dtype) -> None:
    """Replaces the (meta) parameters of the modules by the weights of the files."""
    unused = set(weights.files)
    if backbone.lm_head.weight is backbone.embed_tokens.weight:
        unused.discard("lm_head.weight")
    for module, prefix in ((backbone, "model."), (mrp, _MRP_PREFIX)):
        if module is None:
            continue
        for name, parameter in list(module.named_parameters()):
            names = _published(name if name.startswith("lm_head") else prefix + name)
            _assign(module, name, weights.read(names, parameter.shape).to(dtype))
            unused -= set(names)
    if unused:
        raise CheckpointError(f"{weights.path}: {len(unused)} weights are not used, first: {sorted(unused)[:3]}")


@dataclass(frozen=True, slots=True)
class _Weights:
    """The open files of a checkpoint, by weight name."""

    path: Path
    config: ModelConfig
    files: Mapping[str, Any]

    def read(self, names: list[str], shape: torch.Size) -> Tensor:
        """A parameter of that shape, made of the named weights."""
        parts = []
        for name, height in zip(names, _heights(self.config, names, shape[0]), strict=True):
            if name not in self.files:
                raise CheckpointError(f"{self.path}: weight {name!r} is missing")
            part, wanted = self.files[name].get_tensor(name), [height, *shape[1:]]
            if list(part.shape) != wanted:
                raise CheckpointError(
                    f"{self.path}: {name!r} has shape {list(part.shape)}, config.json implies {wanted}"
                )
            parts.append(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _open(path: Path, stack: ExitStack) -> dict[str, Any]:
    """The open file of every weight name."""
    files: dict[str, Any] = {}
    for file in _weight_files(path):
        try:
            handle = stack.enter_context(safe_open(file, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
        files |= dict.fromkeys(handle.keys(), handle)
    return files


def _assign(module: nn.Module, name: str, weight: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            files = [path / Path(shard).name for shard in shards]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{index} cannot be read: {error!r}") from error
    else:
        files = [path / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{path}: {file.name} is missing (only safetensors are read)")
    return files
