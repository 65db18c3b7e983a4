"""What a checkpoint's chat template needs of the order and shape of a conversation.

APIs take any order of roles. Many templates do not: one system message at the beginning or none at all, users and
assistants in turn, one call in a message, ids of nine letters. Others leave texts out without a word.

Probes at the load find the changes that a template needs. A conversation that the template takes stays as it is.
`template.py` is the caller.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final

from service.text.conversations import (
    Turn,
    Turns,
    calls_of,
    with_parts,
    with_short_ids,
    with_single_calls,
    with_systems_first,
    with_systems_in_user,
    with_texts_as_arguments,
    with_turns,
    with_user,
    with_user_last,
    with_written_calls,
)
from service.text.tools.calls import assistant_message, tool_message

Change = Callable[[Turns], list[Turn]]

#: all changes, in the order in which they are made
_CHANGES: Final[tuple[Change, ...]] = (
    with_short_ids,
    with_texts_as_arguments,
    with_single_calls,
    with_written_calls,
    with_systems_first,
    with_user,
    with_systems_in_user,
    with_turns,
    with_user_last,
    with_parts,
)
#: what is tried, one after another, where a template refuses a conversation in spite of its probes
_LAST: Final = (
    with_systems_first,
    with_user,
    with_systems_in_user,
    with_turns,
    with_user_last,
    with_written_calls,
)
#: the most changes that one probe may need
_MOST: Final = 3

#: texts that a template must show, if it takes the conversation
_WORDS: Final = tuple(f"q{letter}word" for letter in "abcdefg")
_A, _B, _C, _D, _E, _F, _G = _WORDS
_LONG_IDS: Final = ("call_0123456789abcdef01234567", "call_76543210fedcba9876543210")


def _turn(role: str, text: str) -> Turn:
    return {"role": role, "content": text}


_PROBES: Final[tuple[Turns, ...]] = (
    (_turn("user", _A),),
    (_turn("system", _A), _turn("user", _B)),
    (_turn("system", _A), _turn("system", _B), _turn("user", _C), _turn("assistant", _D), _turn("system", _E),
     _turn("user", _F), _turn("system", _G)),
    (_turn("assistant", _A), _turn("assistant", _B), _turn("user", _C), _turn("user", _D)),
    (_turn("assistant", _A),),
    (_turn("user", _A), assistant_message("", [(_LONG_IDS[0], _B, {"c": _C})]),
     tool_message(_LONG_IDS[0], _B, _D), _turn("assistant", _E), _turn("user", _F)),
    (_turn("user", _A), assistant_message("", [(made, _B, {"c": _C}) for made in _LONG_IDS]),
     *(tool_message(made, _B, text) for made, text in zip(_LONG_IDS, (_D, _E), strict=True))),
)  # fmt: skip


class Arrangement:
    """What a template needs. `fill`: the template's text of a conversation; it may raise anything.

    `writes_calls`: whether the template shows calls of tools itself. `refusal`: what it raised at a conversation with
    calls.
    """

    def __init__(self, fill: Callable[[Turns], str]) -> None:
        self._fill = fill
        self._always, self._refused = list[Change](), list[Change]()
        self.refusal: Exception | None = None
        if self._learn(_PROBES[0]):
            for probe in _PROBES[1:]:
                self._learn(probe)
        self.writes_calls = with_written_calls not in (*self._always, *self._refused)

    def forms(self, messages: Turns) -> Iterator[list[Turn]]:
        """The forms of a conversation that are tried, until the template takes one."""
        changes, last = list(self._always), list[Turn]()
        further: list[list[Change]] = [[], self._refused, *([change] for change in _LAST)]
        for more in further:
            changes += more
            form = _changed(messages, changes)
            if form != last:
                yield form
            last = form

    def _learn(self, probe: Turns) -> bool:
        """Adds the fewest changes with which the template shows all texts of a probe. Returns whether there are any."""
        present = [*self._always, *self._refused]
        complete, refusal = self._shows(probe, present)
        if complete:
            return True
        if any(map(calls_of, probe)):
            self.refusal = self.refusal or refusal
        further = [change for change in _CHANGES if change not in present]
        sets = (changes for count in range(1, _MOST + 1) for changes in combinations(further, count))
        for changes in sorted(sets, key=lambda changes: with_written_calls in changes):  # rather the template's own
            if self._shows(probe, [*present, *changes])[0]:
                (self._refused if refusal else self._always).extend(changes)
                return True
        return False

    def _shows(self, probe: Turns, changes: Sequence[Change]) -> tuple[bool, Exception | None]:
        """Whether the template shows all texts of a probe, and what it raised."""
        try:
            text = self._fill(_changed(probe, changes))
        except Exception as error:  # noqa: BLE001 - a template is a program, which may raise anything
            return False, error
        texts = json.dumps(probe)
        return all(word in text for word in _WORDS if word in texts), None


def _changed(messages: Turns, changes: Sequence[Change]) -> list[Turn]:
    made = list(messages)
    for change in _CHANGES:
        if change in changes:
            made = change(made)
    return made
