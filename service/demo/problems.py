"""Problems of the demo: what a prompt asks for. `checker.py` and training read them."""

import re
from dataclasses import dataclass

from service.demo.grammar import ITEMS, LETTERS, NAMES, VERBS

_NAME, _ITEM = "|".join(NAMES), "|".join(ITEMS)
_STORY = re.compile(
    rf"(?P<form>Form: )?(?P<name>{_NAME}) has (?P<start>\d) (?P<items>{_ITEM})"
    rf"(?P<events>(?:, (?:{'|'.join(VERBS.values())}) \d){{1,3}})\."
)
_CODE = re.compile(rf"Write code in (?P<v>[{''.join(LETTERS)}]): (?P<j>\d) to (?P<t>\d)\.")
_EVENT = re.compile(r", (\w+) (\d)")
_SIGNS = {verb: sign for sign, verb in VERBS.items()}


@dataclass(frozen=True, slots=True)
class Story:
    """A story such as "Tom has 5 apples, gets 3, loses 2." `form`: the answer is a filled form."""

    name: str
    items: str
    start: int
    events: tuple[tuple[str, int], ...]
    form: bool = False

    @property
    def totals(self) -> list[int]:
        """What there is at the start and after every event."""
        totals = [self.start]
        for sign, number in self.events:
            totals.append(totals[-1] + number if sign == "+" else totals[-1] - number)
        return totals


@dataclass(frozen=True, slots=True)
class Code:
    """A task such as "Write code in k: 3 to 8." `v`: the variable. The function makes `t` of `j`."""

    v: str
    j: int
    t: int


Task = Story | Code


def parse(prompt: str) -> Task:
    """Parses a problem. ValueError for a text that is not a problem."""
    if story := _STORY.fullmatch(prompt):
        events = tuple((_SIGNS[verb], int(number)) for verb, number in _EVENT.findall(story["events"]))
        return Story(story["name"], story["items"], int(story["start"]), events, story["form"] is not None)
    if code := _CODE.fullmatch(prompt):
        return Code(code["v"], int(code["j"]), int(code["t"]))
    raise ValueError(f"{prompt!r} is not a problem of the demo")
