"""Keeps a test process small: engines refer to each other in circles, and FastAPI holds on to services."""

import ctypes
import gc
import resource
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

#: growth of the process after which it pays to look for what can be freed
_MUCH_MIB = 150.0


class Freeing:
    """A plugin of pytest. Collects after the test by which the process has grown much since the last time."""

    def __init__(self) -> None:
        self._before_mib = _resident_mib()

    def pytest_collection_finish(self) -> None:
        """What was imported stays: later collections need not look at it."""
        gc.collect()
        gc.freeze()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Around each test, its fixtures included."""
        done = yield
        if _resident_mib() > self._before_mib + _MUCH_MIB:
            _forget_routes()
            gc.collect()
            _give_back()
            self._before_mib = _resident_mib()
        return done


def _forget_routes() -> None:
    """FastAPI remembers what kind of function each route has, and a bound method holds its whole service."""
    models = sys.modules.get("fastapi.dependencies.models")
    for function in vars(models).values() if models else ():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _give_back() -> None:
    """What was freed goes back to the system, where the C library can be asked to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_mib() -> float:
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * resource.getpagesize() / 2**20
