"""What may be said of an unforeseen error: its kind and its place. Its message may quote a prompt."""

from __future__ import annotations

import traceback
from pathlib import Path


def kind_and_place(error: BaseException) -> str:
    """Such as "ZeroDivisionError at drafting.py:93": the innermost frame of the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
