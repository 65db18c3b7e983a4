"""The pictures of docs/playground.md: `python -m tests.playground.picture docs`. `make pictures` runs it.

Without playwright or a browser it says so and leaves the pictures as they are.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from tests.playground.browsing import PlaygroundPage, browser_program, demo_server

SIZE = {"width": 1280, "height": 1320}
#: races before the one that is photographed
_RACES = 8


def main(folder):
    browser = browser_program()
    if browser is None or find_spec("playwright") is None:
        sys.stderr.write("no picture of the playground: Chromium or playwright is missing\n")
        return
    from playwright.sync_api import sync_playwright

    with demo_server() as (_, url), sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for scheme, name in (("light", "playground.png"), ("dark", "playground-dark.png")):
            context = chromium.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
            page = PlaygroundPage(context.new_page(), url)
            for _ in range(_RACES + 1):
                page.race()
            page.tab.check("#by-ms", force=True)
            _seek_drafts(page)
            page.tab.locator("[data-lane=A] .cell.accepted").first.hover()
            page.tab.screenshot(path=folder / name)
            with Image.open(folder / name) as shot:
                shot.convert("RGB").save(folder / name, optimize=True)
        chromium.close()


def _seek_drafts(page):
    """The last moment in which the first lane has drafts beside accepted ones."""
    for at in reversed(range(int(page.tab.get_attribute("#slider", "max") or 0))):
        if {"draft", "accepted"} <= set(page.seek(at)["states"]):
            return
    raise RuntimeError("the first lane never has drafts beside accepted ones")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
