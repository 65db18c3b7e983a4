"""Descriptions of unexpected errors by type and place, without their messages.

The message of an unexpected error may quote a prompt, so it is never shown or logged. All packages may use this module.
"""

from __future__ import annotations

import traceback


def type_and_line(error: BaseException) -> str:
    """One line: `ZeroDivisionError in service.decode.drafts, line 93`."""
    kind, at = type(error), error.__traceback__
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if at is None:
        return name
    while at.tb_next is not None:
        at = at.tb_next
    return f"{name} in {at.tb_frame.f_globals.get('__name__', 'unnamed code')}, line {at.tb_lineno}"


def without_message(error: BaseException) -> str:
    """The traceback of an error and of its causes, without any message."""
    parts: list[str] = []
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        frames = "".join(traceback.format_list(traceback.extract_tb(here.__traceback__)))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(here).__module__}.{type(here).__qualname__}")
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)
    return "\n\nraised from:\n".join(parts)
