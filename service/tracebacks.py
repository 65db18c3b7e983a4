"""An error that nobody foresaw, told by its kind and its place.

What such an error says is left out, for it may quote a prompt. Everything that is shown or logged of it comes from
here. Knows nothing of ours, so every package may use it.
"""

from __future__ import annotations

import traceback


def kind_and_place(error: BaseException) -> str:
    """One line: `ZeroDivisionError in service.decode.drafting, line 93`."""
    kind, at = type(error), error.__traceback__
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if at is None:
        return name
    while at.tb_next is not None:
        at = at.tb_next
    return f"{name} in {at.tb_frame.f_globals.get('__name__', 'unnamed code')}, line {at.tb_lineno}"


def without_message(error: BaseException) -> str:
    """An error's traceback, its causes included, as kinds and places."""
    parts: list[str] = []
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        frames = "".join(traceback.format_list(traceback.extract_tb(here.__traceback__)))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(here).__module__}.{type(here).__qualname__}")
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)
    return "\n\nraised from:\n".join(parts)
