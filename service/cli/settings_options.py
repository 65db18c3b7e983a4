"""Settings as options of commands: `serve` has all of them, `batch` those of the model and its engine."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from service.settings.settings import Settings
from service.settings.sources import ALIASES

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def settings_options(without: Collection[str] = ()) -> list[inspect.Parameter]:
    """One option for each setting except `without`, and a hidden option for each alias."""
    names = [name for name in Settings.model_fields if name not in without]
    aliases = {alias: name for alias, name in ALIASES.items() if name in names}
    return [_option(name, Settings.model_fields[name]) for name in names] + [
        _option(alias, Settings.model_fields[name], alias=True) for alias, name in aliases.items()
    ]


def read_settings(options: dict[str, Any]) -> Settings:
    """The settings by the values of their options. SettingsError for values that are not allowed."""
    return Settings(**{name: value for name, value in options.items() if value is not None})


def _option(name: str, field: FieldInfo, *, alias: bool = False) -> inspect.Parameter:
    """A setting as an option. The default None means not given, so that environment and file still count.

    An option with an alias of the setting is not listed in the help.
    """
    aliases = "".join(f"; also --{other.replace('_', '-')}" for other, setting in ALIASES.items() if setting == name)
    default = "" if field.default in (None, ()) else f" (default: {_short(field.default)})"
    kind, flag = _plain_type(field.annotation), name.replace("_", "-")
    names = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
    option = typer.Option(None, names, help=f"{field.description}{default}{aliases}", show_default=False, hidden=alias)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


def _plain_type(annotation: Any) -> Any:
    """The type into which a flag's text is converted: the first plain type of the annotation, else text."""
    if annotation in (bool, int, float, str, Path):
        return annotation
    plain = [_plain_type(part) for part in get_args(annotation) if part is not type(None)]
    return plain[0] if plain and plain[0] in (bool, int, float, Path) else str


def _short(value: object) -> str:
    return "the shipped demo" if isinstance(value, str) and os.sep in value else str(value)
