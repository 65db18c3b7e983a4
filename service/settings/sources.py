"""The sources of settings: their names in other programs, and their YAML files. Knows no setting's type."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from service.errors import SettingsError, nearest

#: names of SGLang and vLLM -> the setting that is the same thing. Settings have vLLM's names where vLLM's values fit.
ALIASES = {
    "api_key": "api_keys",
    "context_length": "max_model_len",
    "enable_deterministic_inference": "deterministic",
    "max_running_requests": "max_num_seqs",
    "max_total_tokens": "kv_cache_tokens",
    "otlp_traces_endpoint": "otlp_endpoint",
    "tp_size": "tensor_parallel_size",
}


def by_setting(values: Mapping[str, Any], settings: Iterable[str], where: str) -> dict[str, Any]:
    """The values of one source by setting. SettingsError for unknown names, and for two values of one setting."""
    chosen: dict[str, Any] = {}
    names = {*settings, *ALIASES}
    for name, value in values.items():
        if name not in names:
            raise SettingsError(f"{where}: {name!r} is not a setting; {nearest(name, names)}", param=name)
        setting = ALIASES.get(name, name)
        if setting in chosen and chosen[setting] != value:
            received, other = ("…", "…") if setting.endswith("_keys") else (repr(value), repr(chosen[setting]))
            raise SettingsError(
                f"{where}: {name} is {received}, and another name of {setting} says {other}", param=name
            )
        chosen[setting] = value
    return chosen


def read_settings(path: Path) -> Mapping[str, Any]:
    """The content of a settings file. JSON is valid YAML."""
    content = read_yaml(path, "the settings file", "config")
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"the settings file {path} must hold `name: value` pairs", param="config")
    return content


def read_yaml(path: Path, what: str, param: str) -> Any:
    """The content of a YAML file. SettingsError if it cannot be read. `what`: the name of the file in the error."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise SettingsError(f"{what} {path} is not YAML{line}", param=param) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{what} {path} cannot be read: {reason}", param=param) from None
