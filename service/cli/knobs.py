"""Commands with an option for each knob of the modes, or for each field of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from service.decode.knobs import Knob, KnobValue, knobs_in
from service.decode.modes import KNOBS, MODES

Knobs = Mapping[str, KnobValue]
Command = Callable[..., None]

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def with_knobs(command: Command) -> Command:
    """The command with one option per knob instead of its parameter `knobs`, which gets the knobs with a value."""

    def knobs(values: Mapping[str, Any]) -> Knobs:
        return {name: _value(name, value) for name, value in values.items() if value is not None}

    return _expanded(command, "knobs", [_option(name, knob) for name, knob in KNOBS.items()], knobs)


def with_fields(parameter: str, options: type[Any]) -> Callable[[Command], Command]:
    """Makes a command with one option per field of a dataclass, instead of its parameter of that class."""
    hints = get_type_hints(options, include_extras=True)
    declared = [
        inspect.Parameter(field.name, _KEYWORD, default=field.default, annotation=hints[field.name])
        for field in fields(options)
    ]
    return lambda command: _expanded(command, parameter, declared, lambda values: options(**values))


def _expanded(
    command: Command, parameter: str, options: list[inspect.Parameter], value: Callable[[Mapping[str, Any]], Any]
) -> Command:
    """The command with `options` instead of a parameter, which gets the `value` of theirs."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for name, declared in signature.parameters.items():
        parameters += options if name == parameter else [declared.replace(kind=_KEYWORD)]

    @wraps(command)
    def expanded(**values: Any) -> None:
        values[parameter] = value({option.name: values.pop(option.name) for option in options})
        command(**values)

    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {declared.name: declared.annotation for declared in parameters}
    return expanded


def _option(name: str, knob: Knob) -> inspect.Parameter:
    modes = ", ".join(mode for mode, params in MODES.items() if name in knobs_in(params))
    kind: Any = str if knob.auto else knob.kind
    annotation: Any = Annotated[kind | None, typer.Option(help=f"{modes}: {knob.help}.")]
    return inspect.Parameter(name, _KEYWORD, default=None, annotation=annotation)


def _value(name: str, option: Any) -> KnobValue:
    """The value of an option. A knob that takes numbers and a word gets a number if the text is one."""
    value: KnobValue = int(option) if KNOBS[name].auto and option.removeprefix("-").isdigit() else option
    return value
