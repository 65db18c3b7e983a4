"""The demo behind a real HTTP server in this process, without Ray, and Debian's Chromium where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from service.gateway.backend import Backend
from service.gateway.ingress import Ingress
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.playground.browsing import PlaygroundPage, browser_program, demo_server
from tests.serving import listening

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OpenPage = Callable[..., PlaygroundPage]
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Skips where playwright or a browser is missing: `apt-get install chromium`.

    Playwright's loop runs in this thread until the module ends, so asynchronous tests stand in other modules.
    """
    if (path := browser_program()) is None or find_spec("playwright") is None:
        pytest.skip("no Chromium here, or no playwright: `apt-get install chromium` and `make install`")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def demo_and_url() -> Iterator[tuple[Replica, str]]:
    with demo_server() as served:
        yield served


@pytest.fixture
def demo(demo_and_url: tuple[Replica, str]) -> Replica:
    return demo_and_url[0]


@pytest.fixture
def url(demo_and_url: tuple[Replica, str]) -> str:
    return demo_and_url[1]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """serve(backend, **settings) -> where another application is served until the test's end."""
    with ExitStack() as stack:

        def serve(backend: Backend, **settings: Any) -> str:
            app = Ingress("i0", Settings(**settings), backend).app(answers_request_id=True)
            return stack.enter_context(listening(app))

        yield serve


@pytest.fixture
def open_page(browser: Browser, url: str, serve: Serve) -> Iterator[OpenPage]:
    """open_page(url, ready, **options) -> the page in a context of its own, checked when the test ends.

    It needs `serve`, so that pages close before their servers do.
    """
    pages: list[PlaygroundPage] = []

    def open_page(at: str = url, ready: bool = True, **options: Any) -> PlaygroundPage:
        size = {"width": 1360, "height": 900}
        context = browser.new_context(**{"viewport": size, "reduced_motion": "reduce", **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        pages.append(PlaygroundPage(context, at, ready))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()
    for page in pages:
        page.check()


@pytest.fixture
def page(open_page: OpenPage) -> PlaygroundPage:
    """The page of the demo."""
    return open_page()
