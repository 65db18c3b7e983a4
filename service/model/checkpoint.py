"""Checkpoints: finding one, its config, loading it whole, saving one.

A checkpoint is a local folder or a hub name. Only safetensors are read, single or sharded; never
pickle, never remote code. Called by the engine's owners (service, command line) and by training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from service.errors import CheckpointError
from service.model.config import ModelConfig, parse_config
from service.model.mrp import Mrp
from service.model.sdar import Sdar
from service.model.weights import fill, published_weights

#: model_type in config.json -> backbone class. A new family is one file and one line here.
FAMILIES: dict[str, type[Sdar]] = {"sdar": Sdar}

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
    fill(path, config, (backbone, mrp), options.dtype)
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
        raise CheckpointError(
            f"{path}/config.json: model_type is {kind!r}, supported are {', '.join(sorted(FAMILIES))}"
        )
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


def save_checkpoint(path: Path, raw: Mapping[str, Any], backbone: Sdar, mrp: Mrp | None) -> None:
    """Writes config.json and one model.safetensors in the published layout, in the modules' dtype."""
    path.mkdir(parents=True, exist_ok=True)
    weights = published_weights(parse_config(raw), backbone, mrp)
    stored = {name: weight.cpu().contiguous().clone() for name, weight in weights.items()}
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(dict(raw), indent=1) + "\n", encoding="utf-8")


def _override(config: ModelConfig, options: LoadOptions) -> ModelConfig:
    if config.mrp is None:
        return config
    residual = config.mrp.residual if options.mrp_residual is None else options.mrp_residual
    scale = config.mrp.scale if options.mrp_scale is None else options.mrp_scale
    return replace(config, mrp=replace(config.mrp, residual=residual, scale=scale))
