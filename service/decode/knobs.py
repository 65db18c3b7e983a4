"""Knobs: what a request may set of a mode.

Each field of a mode's class has one. API, program and documents are made from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from service.errors import InvalidRequest

#: the value of a knob that the engine chooses while decoding
AUTO: Final = "auto"

KnobValue = int | float | str

_KNOB = "knob"


@dataclass(frozen=True, slots=True)
class Knob:
    """The values of one knob and what they mean.

    `kind`: int, float or str. Range: `least` <= value, `above` < value, value <= `most`. `in_block`: the block size is
    the most. `auto`: "auto" is a value, too. `choices`: the values of a text.
    """

    kind: type[KnobValue]
    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    in_block: bool = False
    auto: bool = False
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: KnobValue, block_size: int) -> None:
        """Raises InvalidRequest where the value is none of the knob's."""
        if not self._has(value, block_size):
            raise InvalidRequest(f"{name} is {value}, {self._allowed(name, block_size)}", param=name)

    def _has(self, value: KnobValue, block_size: int) -> bool:
        if self.choices or isinstance(value, str):
            return value in self.choices or (self.auto and value == AUTO)
        return (
            value >= (-math.inf if self.least is None else self.least)
            and value > (-math.inf if self.above is None else self.above)
            and value <= (math.inf if self.most is None else self.most)
            and value < math.inf
            and (not self.in_block or value <= block_size)
        )

    def _allowed(self, name: str, block_size: int) -> str:
        if self.choices:
            return f"allowed are {', '.join(self.choices)}"
        if self.in_block:
            numbers = f"{self.least:.0f} to {block_size} (the block size)"
            return f"allowed are {numbers} and {AUTO!r}" if self.auto else f"allowed are {numbers}"
        if self.above is not None:
            return f"allowed is {self.above:g} < {name} <= {self.most:g}"
        return f"allowed is {self.least:g} or more"


def knob(definition: Knob, default: Any) -> Any:
    """A field of a mode's class. `default` None: the knob is not set."""
    return field(default=default, metadata=MappingProxyType({_KNOB: definition}))


def knobs_in(mode: type[Any]) -> Mapping[str, Knob]:
    """The knobs of a mode's class, by name."""
    made: tuple[Field[Any], ...] = fields(mode)
    return {one.name: one.metadata[_KNOB] for one in made}


TOKENS_PER_STEP = Knob(int, "tokens revealed a step, at most the block size", least=1, in_block=True)
THRESHOLD = Knob(
    float,
    "confidence a token needs; speculative: what is verified is then dynamic, as `knobs` say",
    above=0,
    most=1,
)
ENTROPY_BOUND = Knob(
    float, "nats: the entropies of tokens revealed together, less the largest; sequential: 0 is off", least=0
)
