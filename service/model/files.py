"""The files of a checkpoint: its folder, config and weights. Nothing is loaded here, so no torch is needed.

A checkpoint is a local folder or a hub name. Only safetensors are read, single or sharded; never pickle, never
remote code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from service.errors import CheckpointError
from service.model.families import FAMILIES
from service.model.published_modules import published_module

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "README.md")
#: the folders of a revision in the hub's local cache: `models--OWNER--MODEL/snapshots/COMMIT`
_REPOSITORY, _SNAPSHOTS = "models--", "snapshots"


def resolve(name: str | Path) -> Path:
    """The local folder of a checkpoint; a hub name is downloaded (or found in the local hub cache).

    A hub name may end with `@` and a revision: a commit, a tag or a branch. CheckpointError if there is no such model.
    """
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a NUL
        raise CheckpointError(f"{str(name)!r} is no path of a folder: {error}") from error
    if is_folder:
        return path
    repository, _, revision = str(name).partition("@")
    if repository.count("/") != 1 or repository.startswith((".", "/", "~")):
        raise CheckpointError(f"{str(name)!r} is neither a folder nor a hub name such as 'owner/model'")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(_FILES)))
    except Exception as error:  # the hub client raises many unrelated types
        why = " ".join(str(error).split())
        raise CheckpointError(f"{str(name)!r} could not be fetched from the hub: {why}") from error


def pinned(name: str, path: Path) -> str:
    """The name of a checkpoint in `path`; a hub name with its commit, so that it names the same weights later."""
    commit = revision_of(path)
    return f"{name.partition('@')[0]}@{commit}" if commit else name


def revision_of(path: Path) -> str | None:
    """The commit of a checkpoint in the hub's local cache. None for any other folder."""
    is_snapshot = path.parent.name == _SNAPSHOTS and path.parents[1].name.startswith(_REPOSITORY)
    return path.name if is_snapshot else None


def display_name(path: Path) -> str:
    """The name of a checkpoint in result files: `OWNER/MODEL@COMMIT`, or the name of its folder without a path."""
    commit = revision_of(path)
    if commit is None:
        return path.resolve().name
    return f"{path.parents[1].name.removeprefix(_REPOSITORY).replace('--', '/')}@{commit}"


def read_config(path: Path) -> dict[str, Any]:
    """The parsed config.json of a checkpoint folder, its family checked. A published MRP module's kind is added."""
    raw = read_keys(path)
    module = published_module(path, raw)
    return raw | {"eos_token_id": _end_tokens(path, raw)} | (module.keys if module else {})


def read_keys(path: Path) -> dict[str, Any]:
    """The keys of config.json as they are, its family checked."""
    try:
        raw = _parsed(path / "config.json")
    except FileNotFoundError:
        raise CheckpointError(f"{path} has no config.json") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}/config.json cannot be read: {error}") from error
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(kind, str) or kind not in FAMILIES:
        supported = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"{path}/config.json: model_type is {kind!r}, supported are {supported}")
    return raw


def _parsed(file: Path) -> Any:
    """The JSON of a file. A pipe is refused: reading it may wait without end."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is no file")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _end_tokens(path: Path, raw: Mapping[str, Any]) -> list[int] | int | None:
    """config.json's end tokens and generation_config.json's: chat checkpoints name their turn's end only there."""
    from_config = raw.get("eos_token_id")
    file = path / "generation_config.json"
    if not file.is_file():
        return from_config
    try:
        from_generation = _parsed(file).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    lists = [
        [] if value is None else value if isinstance(value, list) else [value]
        for value in (from_config, from_generation)
    ]
    return list(dict.fromkeys(lists[0] + lists[1]))


def check_weights(path: Path) -> None:
    """Raises CheckpointError for a file of weights that is missing or not whole. Needs no torch."""
    for file in weight_files(path):
        with open_file(file, "np"):
            pass


def open_file(file: Path, framework: Literal["pt", "np"], device: str = "cpu") -> Any:
    """Opens a file of weights, for `with`. `device`: where weights are read to. CheckpointError if it is not whole."""
    try:
        return safe_open(file, framework=framework, device=device)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error


def weight_files(path: Path) -> list[Path]:
    """The files of a checkpoint's weights, single or sharded. CheckpointError if one is missing."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(_parsed(index)["weight_map"].values()))
            files = [path / Path(shard).name for shard in shards]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            expected = "`weight_map` with a file for every weight is expected in JSON"
            raise CheckpointError(f"{index} cannot be read: {expected}") from error
    else:
        files = [path / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{path}: {file.name} is missing (only safetensors are read)")
    return files
