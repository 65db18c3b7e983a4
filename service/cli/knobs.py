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
#: the parameter of a command that the options stand for
_PARAMETER = "knobs"


def with_knobs(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each knob in the place of its parameter `knobs`. It gets those that are given."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += _options() if name == _PARAMETER else [parameter]

    @wraps(command)
    def taking_options(**values: Any) -> None:
        given = {name: values.pop(name) for name in KNOBS}
        command(**values, knobs={name: _value(name, value) for name, value in given.items() if value is not None})

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


def _value(name: str, given: Any) -> KnobValue:
    """A number, where a knob takes numbers and a word."""
    value: KnobValue = int(given) if KNOBS[name].auto and given.removeprefix("-").isdigit() else given
    return value
