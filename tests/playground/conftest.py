"""The demo behind a real HTTP server in this process, without Ray, and Debian's Chromium where there is one."""

from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from service.gateway.ingress import Ingress
from service.settings.settings import Settings
from tests.playground.browsing import PlaygroundPage, browser_program, demo_server
from tests.serving import listening


@pytest.fixture(scope="module")
def browser():
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
def demo_and_url():
    with demo_server() as served:
        yield served


@pytest.fixture
def demo(demo_and_url):
    return demo_and_url[0]


@pytest.fixture
def url(demo_and_url):
    return demo_and_url[1]


@pytest.fixture
def serve():
    """serve(backend, **settings) -> where another application is served until the test's end."""
    with ExitStack() as stack:

        def serve(backend, **settings):
            app = Ingress("i0", Settings(**settings), backend).app(answers_request_id=True)
            return stack.enter_context(listening(app))

        yield serve


@pytest.fixture(scope="module")
def new_tab(browser):
    """new_tab(**options) -> an empty tab. Tabs without options share a context, so that the page's files are cached."""

    def new_context(**options):
        size = {"width": 1360, "height": 900}
        context = browser.new_context(**{"viewport": size, "reduced_motion": "reduce", **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        return context

    shared = new_context()
    return lambda **options: (new_context(**options) if options else shared).new_page()


@pytest.fixture
def open_page(new_tab, url, serve):
    """open_page(url, ready, **options) -> the page in a tab of its own, checked when the test ends.

    It needs `serve`, so that pages close before their servers do.
    """
    pages = []

    def open_page(at=url, ready=True, **options):
        pages.append(PlaygroundPage(new_tab(**options), at, ready))
        return pages[-1]

    yield open_page
    for page in pages:
        for tab in page.context.pages:
            tab.close()
    for page in pages:
        page.check()


@pytest.fixture
def page(open_page):
    """The page of the demo."""
    return open_page()
