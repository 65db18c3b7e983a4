"""The ends of errors about unknown names of settings, fields and knobs: "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: letters of an unknown name that are compared with the known ones
_COMPARED = 80
#: the similarity of two names of which one is likely to be the other, misspelt
_MISSPELT = 0.8


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest of the known names, or all of them."""
    names = sorted(names)
    close = difflib.get_close_matches(name[:_COMPARED], names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"


def similar(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: a known name that differs in a few letters, or nothing."""
    close = difflib.get_close_matches(name[:_COMPARED], sorted(names), n=1, cutoff=_MISSPELT)
    return f"; did you mean {close[0]!r}?" if close else ""
