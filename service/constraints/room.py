"""How much the schemas of one request may grow while they are adapted, and how much work they may be.

Parts of a schema stand for several names or in several places: a list of names, a `$ref` to an object with properties.
Each copy is bounded by the size of the schema, and so is their number; without a limit for all, the product is not.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final

#: the characters of all names that are written for the schemas of a request, and of a name's value
_CHARACTERS, _VALUE = 256 * 1024, 32
#: the visits of parts and of their properties, for all composed schemas of a request
_VISITS: Final = 10_000
#: the CPU time for all schemas of a request
_SECONDS: Final = 2.0


class Room:
    """The room that is left. A part that needs more is left out."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._characters, self._visits = _CHARACTERS, _VISITS
        self._clock, self._until = clock, clock() + _SECONDS

    def check_time(self) -> None:
        """TimeoutError if the schemas have taken too long. Their size bounds that, too."""
        if self._clock() > self._until:
            raise TimeoutError(f"takes more than {_SECONDS:g} s of CPU time to read")

    def has_characters(self, names: Collection[Any]) -> bool:
        """Takes the room of further names. False, and takes none, if there is too little or if they are no texts."""
        if len(names) * _VALUE > self._characters or not all(isinstance(name, str) for name in names):
            return False
        needed = sum(len(name) + _VALUE for name in names)
        if needed > self._characters:
            return False
        self._characters -= needed
        return True

    @property
    def has_visits(self) -> bool:
        return self._visits > 0

    def visit(self, parts: int) -> None:
        self._visits -= parts
