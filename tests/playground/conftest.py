"""The demo behind a real HTTP server in this process, without Ray, and Debian's Chromium where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from service.demo import CHECKPOINT
from service.engine import EngineDeps
from service.gateway.backend import Backend
from service.gateway.ingress import Ingress
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.engine.helpers import FAIR
from tests.gateway.local import LocalBackend
from tests.playground.browsing import Visit, program
from tests.replicas import local_generator
from tests.serving import listening

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_WIDE = {"width": 1360, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Skips where playwright or a browser is missing: `apt-get install chromium`.

    Playwright's loop runs in this thread until the module ends, so asynchronous tests stand in other modules.
    """
    if (path := program()) is None or find_spec("playwright") is None:
        pytest.skip("no Chromium here, or no playwright: `apt-get install chromium` and `make install`")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def demo() -> Iterator[Replica]:
    settings = Settings(device="cpu", dtype="float32", kv_cache_tokens=16384)
    generator = local_generator("r0", load_checkpoint(CHECKPOINT), settings, deps=EngineDeps(costs=FAIR))
    yield generator
    generator.close()


@pytest.fixture(scope="module")
def url(demo: Replica) -> Iterator[str]:
    with listening(Ingress("i0", Settings(), LocalBackend(demo)).app(answers_request_id=True)) as url:
        yield url


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """serve(backend, **settings) -> where another application is served until the test's end."""
    with ExitStack() as stack:

        def serve(backend: Backend, **settings: Any) -> str:
            app = Ingress("i0", Settings(**settings), backend).app(answers_request_id=True)
            return stack.enter_context(listening(app))

        yield serve


@pytest.fixture
def visit(browser: Browser, url: str, serve: Serve) -> Iterator[Callable[..., Visit]]:
    """visit(**options) -> the page, open in a fresh browser. Checks what every visit must keep when the test ends.

    It needs `serve`, so that pages close before their servers do.
    """
    visits: list[Visit] = []

    def visit(at: str = url, ready: bool = True, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": _WIDE, "reduced_motion": "reduce", **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        visits.append(Visit(context, at, ready))
        return visits[-1]

    yield visit
    for one in visits:
        one.context.close()
    for one in visits:
        one.check()
