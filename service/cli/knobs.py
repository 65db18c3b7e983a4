"""An option for each knob of the modes, made from the modes' own definitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from service.decode.knobs import Knob, KnobValue, knobs_in
from service.decode.modes import KNOBS, MODES

Knobs = Mapping[str, KnobValue]
#: the parameter of a command that the options replace
_PARAMETER = "knobs"


def with_knobs(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option per knob instead of its parameter `knobs`, which gets the knobs that are given."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += _options() if name == _PARAMETER else [parameter]

    @wraps(command)
    def taking_options(**values: Any) -> None:
        values_of_knobs = {name: values.pop(name) for name in KNOBS}
        command(
            **values, knobs={name: _value(name, value) for name, value in values_of_knobs.items() if value is not None}
        )

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    taking_options.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    taking_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return taking_options


def _options() -> list[inspect.Parameter]:
    return [_option(name, knob) for name, knob in KNOBS.items()]


def _option(name: str, knob: Knob) -> inspect.Parameter:
    modes = ", ".join(mode for mode, params in MODES.items() if name in knobs_in(params))
    kind: Any = str if knob.auto else knob.kind
    annotation: Any = Annotated[kind | None, typer.Option(help=f"{modes}: {knob.help}.")]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _value(name: str, option: Any) -> KnobValue:
    """The value of an option. A knob that takes numbers and a word gets a number if the text is one."""
    value: KnobValue = int(option) if KNOBS[name].auto and option.removeprefix("-").isdigit() else option
    return value
