"""A visit of the page: what tests do there, and what they read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage

_SOON_MS = 150_000
#: what Debian, other distributions and Google call it
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """The path of a Chromium, None if there is none."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


class Visit:
    """The page at `url` in a browser of its own. `ready`: whether it is expected to learn what is served."""

    def __init__(self, context: BrowserContext, url: str, ready: bool = True) -> None:
        self.context, self.url = context, url
        self.hosts: set[str] = set()
        self.complaints: list[str] = []
        #: what a browser writes to the console by itself when the server refuses a request
        self.expected: tuple[str, ...] = ()
        self.page = context.new_page()
        self.page.set_default_timeout(_SOON_MS)
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url)
        if ready:
            self.page.wait_for_selector("#run:enabled")

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def check(self) -> None:
        """No complaint in the console, no request to another host."""
        left = [one for one in self.complaints if not any(part in one for part in self.expected)]
        assert left == []
        assert self.hosts <= {urlsplit(self.url).netloc, ""}

    # --- what a visitor does -----------------------------------------------------------------------

    def ask(self, prompt: str, kind: str = "chat") -> None:
        self.page.fill("#prompt", prompt)
        self.page.check(f"#kind-{kind}", force=True)

    def choose(self, mode: str, knobs: dict[str, Any], lane: int = 0) -> None:
        plan = self.page.locator(".plan").nth(lane)
        plan.get_by_label("Mode", exact=True).check(force=True)
        plan.locator("select").first.select_option(mode)
        for name, value in knobs.items():
            plan.get_by_label(name, exact=True).fill(str(value))
            plan.get_by_label(name, exact=True).blur()

    def run(self, lanes: int = 1) -> None:
        """Runs what stands in the form, until it is complete."""
        self.page.click("#run")
        self.until(f"document.querySelectorAll('.status.good').length === {lanes}")
        self.page.wait_for_selector("#run:enabled")
        self.seek(1_000_000)

    def until(self, condition: str) -> None:
        """Waits until an expression is true. Playwright's own way evaluates texts, which the page's policy refuses."""
        self.wait(lambda: bool(self.page.evaluate(condition)))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition is true, while the browser goes on."""
        end = time.monotonic() + _SOON_MS / 1000
        while not condition():
            assert time.monotonic() < end
            self.page.wait_for_timeout(10)

    def seek(self, at: int) -> None:
        """Moves the slider."""
        self.page.evaluate(
            "at => { const slider = document.getElementById('slider'); slider.value = at;"
            "slider.dispatchEvent(new Event('input')); }",
            at,
        )

    # --- what a visitor sees -----------------------------------------------------------------------

    def answer(self, lane: str = "A") -> str:
        """The text that screen readers get: the API's own."""
        return self.page.locator(f"[data-answer={lane}]").text_content() or ""

    def flow(self, lane: str = "A") -> str:
        """The text that is seen: the tokens' own."""
        return self.page.locator(f"[data-lane={lane}] .flow").text_content() or ""

    def number(self, name: str, lane: str = "A") -> str:
        return self.page.locator(f"[data-lane={lane}] [data-number='{name}'] dd").inner_text()

    def states(self, lane: str = "A") -> list[str]:
        """The states of the block's cells."""
        names = self.page.locator(f"[data-lane={lane}] .cell").evaluate_all("all => all.map(one => one.className)")
        return [name.split()[1] for name in names]

    def notice(self) -> str:
        return self.page.locator("#notice .error").inner_text()
