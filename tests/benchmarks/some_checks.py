"""Checks for processes of test_gpu.py, which import this small module."""

import os
from functools import partial

from benchmarks.gpu.shares import Check


def some_checks(*chosen):
    """Some of these: right, wrong without a promise, wrong, broken, the end of its process, without an end."""
    every = [
        Check("right", lambda: (3, 3)),
        Check("informs", lambda: (1, 3), promised=False),
        Check("wrong", lambda: (2, 3)),
        Check("broken", lambda: (1 // 0, 1)),
        Check("dead", partial(os._exit, 7)),
        Check("hangs", partial(os.read, os.pipe()[0], 1)),
    ]
    return [every[index] for index in chosen]
