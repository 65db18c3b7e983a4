"""The files of a checkpoint: its folder, config and weights. Nothing is loaded here, so no torch is needed.

A checkpoint is a local folder or a hub name. Only safetensors are read, single or sharded; never pickle, never
remote code.
"""

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from service.errors import CheckpointError
from service.model.end_tokens import end_tokens
from service.model.families import family_name
from service.model.json_files import parsed

_log = logging.getLogger(__name__)

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "README.md")
#: files of adapters, without which the weights are another model (UNO's are Qwen3's, which are causal)
_ADAPTERS = ("adapter_config.json", "adapter")
#: the folders of a revision in the hub's local cache: `models--OWNER--MODEL/snapshots/COMMIT`
_REPOSITORY, _SNAPSHOTS = "models--", "snapshots"
#: what some names write as a dot and others as an underscore
_SEPARATOR = re.compile(r"(?<=\d)[._](?=\d)")


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
    return _fetched(repository, revision or None)


def _fetched(repository: str, revision: str | None) -> Path:
    """The folder of a hub name. One that is not found is tried in the other spelling, `1_7b` for `1.7b`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(_FILES)))
    except Exception as error:  # the hub client raises many unrelated types
        spelling = _SEPARATOR.sub(lambda match: "_" if match[0] == "." else ".", repository)
        if spelling != repository and isinstance(error, LocalEntryNotFoundError | RepositoryNotFoundError):
            with suppress(Exception):
                folder = snapshot_download(spelling, revision=revision, allow_patterns=list(_FILES))
                _log.warning("%r was not found on the hub, and %r is taken", repository, spelling)
                return Path(folder)
        why = " ".join(str(error).split())
        name = f"{repository}@{revision}" if revision else repository
        raise CheckpointError(f"{name!r} could not be fetched from the hub: {why}") from error


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
    for adapter in _ADAPTERS:
        if (path / adapter).exists():
            raise CheckpointError(f"{path} has {adapter}: adapters are not supported; merge it into the weights first")
    module = published_module(path, raw)
    ends = [*end_tokens(path, raw)]
    named = {} if ends in ([], [raw.get("eos_token_id")]) else {"eos_token_id": ends}
    return raw | named | (module.keys if module else {})


def read_keys(path: Path) -> dict[str, Any]:
    """The keys of config.json as they are, its family checked."""
    try:
        raw = parsed(path / "config.json")
    except FileNotFoundError:
        raise CheckpointError(f"{path} has no config.json") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}/config.json cannot be read: {error}") from error
    keys: dict[str, Any] = raw if isinstance(raw, dict) else {}
    try:
        family_name(keys)
    except CheckpointError as error:
        raise CheckpointError(f"{path}/{error.message}") from None
    return keys


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
            shards = sorted(set(parsed(index)["weight_map"].values()))
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


# --- the published MRP modules ---------------------------------------------------------------------
# Their config.json does not name their kind, so they are known by their names. A config.json with a key `mrp_…` names
# the kind itself. An operator's option wins. docs/modules.md has the table. Source: README.md and scripts of
# heavyball-research/multi-token-residual-prediction at commit 3f237b4.

#: `sdar-4b-mrp-3lyr-k2`, and `sdar-1_7b-mrp-3lyr`, which some of the published scripts write with a dot
_NAME = re.compile(r"(sdar-(?:1[._]7b|4b|8b)-mrp-3lyr)(-k2|-direct)?", re.IGNORECASE)
#: the folder of a repository in the hub's local cache
_CACHED = "models--heavyball--"
#: every published module was trained and measured with blocks of 16; the config.json of 4B says 4
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class PublishedModule:
    """The kind of a published module. `residual`, `scale`: as in `MrpConfig`. `block_size`: the trained block size."""

    name: str
    residual: bool = True
    scale: float = 1.0
    block_size: int = _BLOCK_SIZE

    @property
    def keys(self) -> dict[str, bool | float]:
        return {"mrp_residual": self.residual, "mrp_scale": self.scale, "block_size": self.block_size}


def published_module(folder: Path, raw: Mapping[str, Any]) -> PublishedModule | None:
    """The published module in a folder with this config.json. None for another module, or one that names its kind."""
    if not raw.get("num_nextn_predict_layers") or any(key.startswith("mrp_") for key in raw):
        return None
    folder = folder.absolute()
    for name in (folder.name, folder.resolve().name, folder.parent.parent.name):
        if match := _NAME.fullmatch(name.removeprefix(_CACHED)):
            size, kind = match[1].lower().replace(".", "_"), (match[2] or "").lower()
            return PublishedModule(size + kind, kind != "-direct", 2.0 if kind == "-k2" else 1.0)
    return None
