"""What a checkpoint's chat template needs of the order and shape of a conversation.

APIs take any order of roles. Many templates do not: one system message at the beginning or none at all, users and
assistants in turn, one call in a message, ids of nine letters. Others leave texts out without a word.

Probes at the load find the changes that a template needs. A conversation that the template takes stays as it is.
`template.py` is the caller.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, count
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
_MOST: Final = 2

_WORD: Final = re.compile("q[0-9]+word")
_LONG_IDS: Final = ("call_0123456789abcdef01234567", "call_76543210fedcba9876543210")
_LETTERS: Final = {"s": "system", "u": "user", "a": "assistant"}
_CALLING: Final = assistant_message("", [(call_id, "f", {"a": "x"}) for call_id in _LONG_IDS])
_RESULTS: Final = tuple(tool_message(call_id, "f", "x") for call_id in _LONG_IDS)


def _turns(letters: str) -> list[Turn]:
    return [{"role": _LETTERS[letter], "content": "x"} for letter in letters]


_PROBES: Final[tuple[Turns, ...]] = (
    *map(_turns, ("u", "su", "ssuasus", "us", "usu", "s", "aauu", "a")),
    (*_turns("u"), {**_CALLING, "tool_calls": _CALLING["tool_calls"][:1]}, _RESULTS[0], *_turns("au")),
    (*_turns("u"), _CALLING, *_RESULTS),
)


class Arrangement:
    """What a template needs. `fill`: the template's text of a conversation; it may raise anything.

    `writes_calls`: whether the template shows calls of tools itself. `refusal`: what it raised at a conversation with
    calls.
    """

    def __init__(self, fill: Callable[[Turns], str]) -> None:
        self._fill = fill
        self._needed, self._loses = list[Change](), False  # whether it takes a conversation and leaves texts out
        self.refusal: Exception | None = None
        if self._learn(_PROBES[0]):
            for probe in _PROBES[1:]:
                self._learn(probe)
        self.writes_calls = with_written_calls not in self._needed

    def forms(self, messages: Turns) -> Iterator[tuple[Turns, bool]]:
        """The forms of a conversation that are tried until the template takes one, and whether probes led to each."""
        changes, last = list(self._needed), _changed(messages, self._needed)
        if last == list(messages) or not self._loses or self._shows(messages)[0]:
            yield messages, True
        if last != list(messages):
            yield last, True
        for change in _LAST:
            changes.append(change)
            form = _changed(messages, changes)
            if form != last:
                yield form, False
            last = form

    def _learn(self, probe: Turns) -> bool:
        """Finds the fewest changes with which the template shows all texts of a probe. Returns whether it can."""
        complete, refusal = self._shows(probe)
        if complete:
            return True
        self._loses |= refusal is None
        if any(map(calls_of, probe)):
            self.refusal = self.refusal or refusal
        further = [change for change in _CHANGES if change not in self._needed]
        sets = (changes for size in range(_MOST + 1) for changes in combinations(further, size))
        for changes in sorted(sets, key=lambda changes: with_written_calls in changes):  # rather the template's own
            if self._shows(probe, [*self._needed, *changes])[0]:
                self._needed += changes
                return True
        return False

    def _shows(self, messages: Turns, changes: Sequence[Change] = ()) -> tuple[bool, Exception | None]:
        """Whether the template shows all texts of a conversation, and what it raised. Other texts stand for them."""
        numbers = count()
        sketch = [_sketched(message, numbers) for message in messages]
        try:
            text = self._fill(_changed(sketch, changes))
        except Exception as error:  # noqa: BLE001 - a template is a program, which may raise anything
            return False, error
        return len(set(_WORD.findall(text))) == next(numbers), None


def _sketched(message: Turn, numbers: Iterator[int]) -> Turn:
    """A message with other texts, each of which is there once in a conversation."""
    sketch = {**message, "content": f"q{next(numbers)}word" if message.get("content") else ""}
    if calls := calls_of(message):
        sketch["tool_calls"] = [
            {**call, "function": {"name": f"q{next(numbers)}word", "arguments": {"a": f"q{next(numbers)}word"}}}
            for call in calls
        ]
    return sketch


def _changed(messages: Turns, changes: Sequence[Change]) -> list[Turn]:
    made = list(messages)
    for change in _CHANGES:
        if change in changes:
            made = change(made)
    return made
