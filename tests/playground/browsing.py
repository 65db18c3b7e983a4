"""The page in a browser: what a visitor does there, and what a visitor sees."""

import shutil
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

from service.demo import CHECKPOINT
from service.engine import EngineDeps
from service.model import load_checkpoint
from service.settings.settings import Settings
from tests.engine.helpers import CHEAP_ROWS
from tests.gateway.helpers import application
from tests.replicas import local_generator
from tests.serving import listening

_SOON_MS = 150_000
#: what Debian, other distributions and Google call it
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: the states of the cells and the numbers of the first lane at a position of the slider
_MOMENT = """at => {
    const slider = document.getElementById('slider');
    slider.value = at;
    slider.dispatchEvent(new Event('input'));
    const lane = document.querySelector('[data-lane=A]');
    return {
        block: lane.querySelector('.where').textContent,
        states: [...lane.querySelectorAll('.cell')].map(cell => cell.className.split(' ')[1]),
        forwards: lane.querySelector("[data-number='forwards'] dd").textContent,
        answer: lane.querySelector('[data-answer]').textContent,
    };
}"""


def browser_program():
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


@contextmanager
def demo_server():
    settings = Settings(device="cpu", dtype="float32", kv_cache_tokens=16384)
    replica = local_generator("r0", load_checkpoint(CHECKPOINT), settings, deps=EngineDeps(costs=CHEAP_ROWS))
    try:
        with listening(application(replica)) as url:
            yield replica, url
    finally:
        replica.close()


class PlaygroundPage:
    """The playground in a tab of a browser. `ready`: whether it is expected to learn what is served."""

    def __init__(self, tab, url, ready=True):
        self.tab, self.context, self.url = tab, tab.context, url
        self.hosts = set()
        self.complaints = []
        #: what a browser writes to the console by itself when the server refuses a request
        self.expected = ()
        self.tab.set_default_timeout(_SOON_MS)
        self.tab.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.tab.on("console", self._note)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(url)
        if ready:
            self.tab.wait_for_selector("#run:enabled")

    def open(self, url):
        """Opens a link to the same page."""
        self.tab.goto("about:blank")
        self.tab.goto(url)
        self.tab.wait_for_selector("#run:enabled")

    def _note(self, message):
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def check(self):
        unexpected = [text for text in self.complaints if not any(part in text for part in self.expected)]
        assert unexpected == []
        assert self.hosts <= {urlsplit(self.url).netloc, ""}

    # --- what a visitor does -----------------------------------------------------------------------

    def fill(self, prompt, kind="chat"):
        self.tab.fill("#prompt", prompt)
        self.tab.check(f"#kind-{kind}", force=True)

    def choose(self, mode, knobs, lane=0):
        plan = self.tab.locator(".plan").nth(lane)
        plan.get_by_label("Mode", exact=True).check(force=True)
        plan.locator("select").first.select_option(mode)
        self.open_more()
        for name, value in knobs.items():
            plan.get_by_label(name, exact=True).fill(str(value))
            plan.get_by_label(name, exact=True).blur()

    def open_more(self):
        """Opens all that is behind "More"."""
        self.tab.locator("details").evaluate_all("all => all.forEach(details => { details.open = true; })")

    def choose_quality(self, quality=None, lane=0):
        plan = self.tab.locator(".plan").nth(lane)
        plan.get_by_label("Quality", exact=True).check(force=True)
        if quality:
            plan.locator(".choice label", has=self.tab.get_by_text(quality, exact=True)).click()

    def run(self, button="#run"):
        self.tab.click(button)
        self.tab.wait_for_selector("#run:enabled")
        self.tab.wait_for_selector(".status.good")
        self.seek(1_000_000)

    def race(self):
        self.run("#race")

    def run_to_error(self):
        self.tab.click("#run")
        self.tab.wait_for_selector("#notice .error")
        self.tab.wait_for_selector("#run:enabled")
        return self.tab.locator("#notice .error").inner_text()

    def wait(self, condition):
        """Waits until a condition is true, while the browser goes on.

        Playwright's own way evaluates texts, which the page's policy refuses.
        """
        end = time.monotonic() + _SOON_MS / 1000
        while not condition():
            assert time.monotonic() < end
            self.tab.wait_for_timeout(10)

    def seek(self, at):
        """Moves the slider. Returns what the first lane shows there."""
        return self.tab.evaluate(_MOMENT, at)

    def moments(self, count):
        """The first positions of the slider, as `seek` returns them."""
        return self.tab.evaluate(f"count => [...Array(count).keys()].map({_MOMENT})", count)

    # --- what a visitor sees -----------------------------------------------------------------------

    def answer(self, lane="A"):
        """The text that screen readers get: the API's own."""
        return self.tab.locator(f"[data-answer={lane}]").text_content() or ""

    def flow(self):
        """The text that is seen: the tokens' own."""
        return self.tab.locator("[data-lane=A] .flow").text_content() or ""

    def number(self, name):
        return self.tab.locator(f"[data-lane=A] [data-number='{name}'] dd").inner_text()
