"""Knobs: the parameters of a mode that a request may set.

Each field of a mode's class has a knob. The API, the program and the documents are made from the knobs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, get_type_hints

from service.errors import InvalidRequest

#: the value of a knob that the engine chooses while decoding
AUTO: Final = "auto"

KnobValue = int | float | str


@dataclass(frozen=True, slots=True)
class Knob:
    """The values of one knob and their meaning."""

    kind: type[KnobValue]
    help: str
    minimum: float | None = None  # the lowest value
    above: float | None = None  # the value must be greater
    maximum: float | None = None
    in_block: bool = False  # whether the largest value is the block size
    auto: bool = False  # whether "auto" is allowed
    choices: tuple[str, ...] = ()  # the allowed texts

    def check(self, name: str, value: KnobValue, block_size: int) -> None:
        """InvalidRequest if the value is not allowed."""
        if not self._has(value, block_size):
            raise InvalidRequest(f"{name} is {value}, {self._allowed(name, block_size)}", param=name)

    def _has(self, value: KnobValue, block_size: int) -> bool:
        if self.choices or isinstance(value, str):
            return value in self.choices or (self.auto and value == AUTO)
        return (
            value >= (-math.inf if self.minimum is None else self.minimum)
            and value > (-math.inf if self.above is None else self.above)
            and value <= (math.inf if self.maximum is None else self.maximum)
            and value < math.inf
            and (not self.in_block or value <= block_size)
        )

    def _allowed(self, name: str, block_size: int) -> str:
        if self.choices:
            return f"allowed are {', '.join(self.choices)}"
        if self.in_block:
            numbers = f"{self.minimum:.0f} to {block_size} (the block size)"
            return f"allowed are {numbers} and {AUTO!r}" if self.auto else f"allowed are {numbers}"
        if self.minimum is not None and self.maximum is not None:
            return f"allowed is {self.minimum:g} <= {name} <= {self.maximum:g}"
        if self.above is not None:
            return f"allowed is {self.above:g} < {name} <= {self.maximum:g}"
        return f"allowed is {self.minimum:g} or more"


@lru_cache
def knobs_in(mode: type[Any]) -> Mapping[str, Knob]:
    """The knobs of a mode's class, by name: its fields are `Annotated` with them. Default None: the knob is unset.

    A field without a knob is allowed in a mode that is used in Python only: nothing checks it.
    """
    hints = get_type_hints(mode, include_extras=True)
    return {name: knob for name in mode.__struct_fields__ for knob in getattr(hints[name], "__metadata__", ())[:1]}


TOKENS_PER_STEP = Knob(int, "tokens revealed per step, at most the block size", minimum=1, in_block=True)
THRESHOLD = Knob(
    float,
    "confidence that a token needs to be revealed; in direct the product of the confidences of MRP's picks since the "
    "backbone's, default: none; in speculative it sets verify to dynamic",
    above=0,
    maximum=1,
)
ENTROPY_BOUND = Knob(
    float,
    "bound in nats on the sum of the entropies of tokens revealed together, less the largest; sequential: 0 is off",
    minimum=0,
)
