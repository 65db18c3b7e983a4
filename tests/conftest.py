"""What all tests share: one torch thread, the same random examples in every run, one worker for Ray."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from zlib import crc32

import pytest
import torch
from hypothesis import settings

from tests.clock import Clock
from tests.memory import Freeing
from tests.scheduling import RAY, one_worker_for_ray

torch.set_num_threads(1)

# Triton's own functions are made for the GPU or for its interpreter when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests ask this machine only, and most clients would ask the proxies of the environment.
for proxy in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[proxy]

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")  # look further with: pytest --hypothesis-profile=explore


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Freeing())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", type=float, default=1.0, help="of all chosen tests run this share, the same ones every time"
    )
    parser.addoption("--write-counts", action="store_true", help="store lower counts of the virtual CUDA device")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Workers for `-n logical`: one for each core and one more, since the one with Ray waits for other processes."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return one_worker_for_ray(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A slow test has an hour where it names no limit of its own. Ray is started where the scheduler expects it."""
    for item in items:
        if item.get_closest_marker("ray") and not item.nodeid.startswith(RAY):
            raise pytest.UsageError(f"{item.nodeid} has the mark `ray`, but tests/scheduling.py does not name its file")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
    share: float = config.getoption("--share")
    left_out = [item for item in items if crc32(item.nodeid.encode()) >= share * 2**32]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def any_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with `mrp_steps: "auto"` get another plan after each step, whatever is fast on this machine."""
    from tests.plans import use_any_plans

    use_any_plans(monkeypatch)


@pytest.fixture
def quick_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of this machine are measured on few numbers."""
    from benchmarks import machine

    monkeypatch.setitem(machine._BYTES, "cpu", 2**20)
    monkeypatch.setitem(machine._SIDES, "cpu", (64, 128))


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int | str | None]]:
    """The program as a function: arguments in, exit status out. Its logs end with the test."""
    from service.cli.main import main

    logger = logging.getLogger("service")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate

    def run(*arguments: object) -> int | str | None:
        monkeypatch.setattr(sys, "argv", ["mrp-serve", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code

    yield run
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


@pytest.fixture(scope="session")
def triton_device() -> Iterator[str]:
    """Where Triton's kernels run: on CUDA, else on the CPU by Triton's interpreter. Skips where there is no Triton."""
    if find_spec("triton") is None:
        pytest.skip("no kernel to test: triton has wheels for Linux on x86_64 only, where the extra `dev` installs it")
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            _round_e4m3(patch)
        yield "cuda" if torch.cuda.is_available() else "cpu"


def _round_e4m3(patch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter makes 64 of 127 in e4m3: it loses the carry of a rounding. CUDA rounds as torch does."""
    from triton import language
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(numbers: Any, dtype: Any, wanted: Any, rounding: Any) -> Any:
        if (dtype, wanted) != (language.float32, language.float8e4nv):
            return convert(numbers, dtype, wanted, rounding)
        return torch.from_numpy(numbers).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    patch.setattr(interpreter, "_convert_float", converted)
