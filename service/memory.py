"""The memory of this process."""

from __future__ import annotations

import ctypes


def trim_memory() -> None:
    """Returns freed memory to the system, which glibc does not do by itself. Other threads run meanwhile."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
