"""Writes a servable checkpoint: the files of a backbone and a new MRP module, in the published layout.

The backbone's weights are copied unchanged, file by file. An earlier MRP module is left out.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from service.model import Backbone, ModelConfig, Mrp, parse_config, published_weights
from service.model.families import family_name

MRP_FILE = "mrp.safetensors"
#: the only file of a folder with weights
WEIGHTS_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_COPIED = ("*.json", "*.jinja", "*.txt", "*.model")
#: file with the scores of a training on held-out examples
HELDOUT_FILE = "heldout.json"
#: files that are written anew, or that were measured with another module: the calibration and the scores
_NOT_COPIED = {"config.json", _INDEX, "quality.json", HELDOUT_FILE}
#: bytes of a full file of weights
_FILE_SIZE = 2**30


def mrp_config(raw: Mapping[str, Any], mrp: Mapping[str, Any]) -> dict[str, Any]:
    """A backbone's config.json with an MRP module's keys. `model_type` names the family: the architecture changes."""
    module = {"architectures": ["SDARMRPForCausalLM"], "num_mrp_heads": 1, **mrp}
    return {**raw, "model_type": family_name(raw), **module}


def stored_dtype(source: Path) -> torch.dtype:
    """The data type of the weights in a checkpoint's files."""
    with safe_open(_shards(source)[0], framework="pt") as file:
        first: Tensor = file.get_tensor(next(iter(file.keys())))
        return first.dtype


def publish(source: Path, out: Path, raw: Mapping[str, Any], models: tuple[Backbone, Mrp]) -> None:
    """Writes the folder `out` from the backbone in `source` and the MRP module. `raw`: the new config.json."""
    out.mkdir(parents=True, exist_ok=True)
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.name not in _NOT_COPIED:
                shutil.copyfile(file, out / file.name)
    weight_map = publish_mrp(out / MRP_FILE, parse_config(raw), models, stored_dtype(source))
    for shard in _shards(source):
        with safe_open(shard, framework="pt") as file:
            names = [name for name in file.keys() if not _is_mrp(name)]  # noqa: SIM118 (not a dict)
            if names:
                weight_map |= _write(out / shard.name, {name: file.get_tensor(name) for name in names})
    (out / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1) + "\n", encoding="utf-8")
    config = out / "config.json"
    config.write_text(json.dumps(dict(raw), indent=1) + "\n", encoding="utf-8")
    for name in {*weight_map.values()}:
        shutil.copymode(config, out / name)  # safetensors makes files that only their owner may read


def publish_mrp(file: Path, config: ModelConfig, models: tuple[Backbone, Mrp], dtype: torch.dtype) -> dict[str, str]:
    """Writes MRP's weights alone. Returns the file's name for the name of each weight."""
    weights = published_weights(config, *models)
    ours = {name: weight.to("cpu", dtype).contiguous() for name, weight in weights.items() if _is_mrp(name)}
    return _write(file, ours)


def _write(file: Path, weights: dict[str, Tensor]) -> dict[str, str]:
    save_file({name: weight.clone() for name, weight in weights.items()}, file, metadata={"format": "pt"})
    return dict.fromkeys(weights, file.name)


def _is_mrp(name: str) -> bool:
    return name.startswith("mrp_modules.")


def _shards(source: Path) -> list[Path]:
    index = source / _INDEX
    if not index.is_file():
        return [source / WEIGHTS_FILE]
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [source / Path(name).name for name in sorted(set(names))]
