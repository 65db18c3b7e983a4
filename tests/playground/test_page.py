"""The page in a browser, against a real server on the demo."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import httpx
import pytest

from service.decode.modes import MODES
from service.errors import NotReady, QueueFull
from service.messages.replica_status import Example
from service.messages.wire import Chunk, Ending, Progress
from service.replica.replica import Replica
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.local import LocalBackend
from tests.playground.browsing import Visit
from tests.playground.conftest import Serve

PROMPT = "Tom has 5 apples, gets 3, loses 2."
PLANS: dict[str, dict[str, Any]] = {
    "static": {"tokens_per_step": 2},
    "dynamic": {"threshold": 0.5},
    "sequential": {"entropy_bound": 0.1},
    "entropy": {"entropy_bound": 0.1},
    "direct": {"mrp_steps": 2},
    "speculative": {"mrp_steps": 4},
    "remask": {"threshold": 0.5},
}
Visiting = Callable[..., Visit]


def asked(url: str, **fields: Any) -> dict[str, Any]:
    """The API's answer to what the page asks."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "seed": 17, "max_new_tokens": 256}
    answer: dict[str, Any] = httpx.post(f"{url}generate", json=body | fields, timeout=60).raise_for_status().json()
    return answer


def rounded(value: float) -> str:
    """Two decimals, as browsers round."""
    return str(Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP))


def test_every_mode_is_tried() -> None:
    assert PLANS.keys() == MODES.keys()


@pytest.mark.parametrize("mode", PLANS)
def test_a_run_in_each_mode_gives_the_apis_text_and_numbers(visit: Visiting, url: str, mode: str) -> None:
    one = visit()
    one.ask(PROMPT)
    one.choose(mode, PLANS[mode])
    one.run()
    answer = asked(url, mode=mode, **PLANS[mode])
    forwards = answer["stats"]["forwards"]
    assert one.answer() == one.flow() == answer["text"]
    assert one.number("forwards") == str(forwards["denoise"] + forwards["verify"])
    assert one.number("tokens a forward") == rounded(answer["stats"]["tokens_per_forward"])
    assert one.page.locator(".title").inner_text().startswith(mode)
    moments = int(one.page.get_attribute("#slider", "max") or 0)
    one.seek(0)
    assert set(one.states()) <= {"masked", "prompt"}
    assert (one.number("forwards"), one.answer()) == ("0", "")
    one.seek(moments - 1)
    assert one.answer() != answer["text"] or answer["finish_reason"] == "length"


def test_a_run_by_quality(visit: Visiting, url: str) -> None:
    one = visit()
    one.ask(PROMPT)
    one.page.locator(".plan").first.get_by_label("Quality", exact=True).check(force=True)
    one.page.locator(".choice label", has_text="balanced").first.click()
    one.run()
    assert one.answer() == asked(url, quality="balanced")["text"]


def test_a_plain_prompt_and_a_sample(visit: Visiting, url: str) -> None:
    one = visit()
    one.ask("def add(a, b):", "plain")
    one.page.fill("#temperature", "0.8")
    one.page.fill("#seed", "5")
    one.page.fill("#tokens", "40")
    one.run()
    fields = {"prompt": "def add(a, b):", "temperature": 0.8, "seed": 5, "max_new_tokens": 40, "messages": None}
    assert one.answer() == asked(url, mode="speculative", mrp_steps=4, **fields)["text"]


def test_examples_are_the_cards(visit: Visiting, url: str) -> None:
    [model] = httpx.get(f"{url}v1/models").json()["data"]
    one = visit()
    chips = one.page.locator("#examples button")
    assert chips.all_inner_texts() == [example["title"] for example in model["examples"]]
    assert one.page.input_value("#prompt") == PROMPT
    chips.last.click()
    assert one.page.input_value("#prompt") == model["examples"][-1]["text"]
    assert one.page.is_checked("#kind-plain")


def test_knobs_and_limits_are_the_servers(visit: Visiting, url: str) -> None:
    [model] = httpx.get(f"{url}v1/models").json()["data"]
    one = visit()
    plan = one.page.locator(".plan").first
    assert plan.locator("select").first.locator("option").all_inner_texts() == model["modes"]
    for mode in model["modes"]:
        plan.locator("select").first.select_option(mode)
        assert plan.locator(".knob label").all_inner_texts() == list(model["mode_info"][mode]["knobs"])
    plan.locator("select").first.select_option("static")
    field = plan.get_by_label("tokens_per_step")
    assert (field.get_attribute("min"), field.get_attribute("max")) == ("1", str(model["block_size"]))
    assert one.page.get_attribute("#tokens", "max") == str(model["max_model_len"])


class Film:
    """What the pictures of docs/ show of the same steps (dev/pictures/filling.py)."""

    def __init__(self, generator: Replica, mode: str, knobs: dict[str, Any], length: int) -> None:
        from dev.pictures.filling import Answer, moments
        from service.decode.registry import make_mode
        from service.demo import CHECKPOINT
        from service.library import TextModel

        model = TextModel.load(CHECKPOINT, threads=1)
        messages = [{"role": "user", "content": PROMPT}]
        [answer] = model.generate([messages], make_mode(mode, knobs))
        size = model.checkpoint.config.block_size
        held = len(model.codec.encode_chat(messages)) % size
        steps = [block.steps for block in answer.completion.blocks]
        self.blocks = len(steps)
        self.moments = moments(Answer("", steps, size, held, length), str)

    def states(self, number: int, block: int) -> list[str]:
        return [
            cell.source if cell.state in {"new", "old"} else cell.state for cell in self.moments[number].blocks[block]
        ]


@pytest.mark.parametrize("mode", ["direct", "speculative", "remask"])
def test_every_moment_is_that_of_the_pictures(visit: Visiting, demo: Replica, url: str, mode: str) -> None:
    one = visit()
    one.ask(PROMPT)
    one.choose(mode, PLANS[mode])
    one.run()
    answer = asked(url, mode=mode, **PLANS[mode])
    length = answer["usage"]["completion_tokens"] + (answer["finish_reason"] == "stop")
    film = Film(demo, mode, PLANS[mode], length)
    assert one.page.get_attribute("#slider", "max") == str(len(film.moments) - 1)
    for number, moment in enumerate(film.moments):
        one.seek(number)
        shown = re.match(r"Block (\d+)", one.page.locator(".where").inner_text())
        assert shown is not None
        seen = [{"revoked": "masked", "beyond": "masked"}.get(state, state) for state in one.states()]
        assert seen == film.states(number, int(shown[1]) - 1)
        assert one.number("forwards") == str(moment.forwards)


def test_a_cell_says_its_token_its_confidence_and_who_proposed_it(visit: Visiting) -> None:
    one = visit()
    one.ask(PROMPT)
    one.choose("speculative", {"mrp_steps": 4})
    one.run()
    accepted = one.page.locator(".cell.accepted").first
    accepted.hover()
    told = one.page.locator(".detail").inner_text()
    assert "accepted draft" in told
    assert re.search(r"confidence [\d.]+ %", told)
    assert re.search(r"forwards? \d+( to \d+)?: drafted", told)
    accepted.focus()
    before = one.page.evaluate("document.activeElement.getAttribute('aria-label')")
    one.page.keyboard.press("ArrowRight")
    after = one.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert before != after
    assert re.match(r"Position \d+: ", after)


def test_a_race_whose_outputs_are_identical_says_so(visit: Visiting, url: str) -> None:
    one = visit()
    one.ask(PROMPT)
    one.page.check("#race")
    one.choose("speculative", {"mrp_steps": 4}, 0)
    one.choose("static", {}, 1)
    one.run(lanes=2)
    assert one.page.locator(".same").inner_text() == "Identical output"
    assert one.answer("A") == one.answer("B") == asked(url, mode="static")["text"]
    table = one.page.locator("table").inner_text()
    for mode, knobs in (("speculative", {"mrp_steps": 4}), ("static", {})):
        stats = asked(url, mode=mode, **knobs)["stats"]
        assert rounded(stats["tokens_per_forward"]) in table
        assert str(stats["forwards"]["denoise"] + stats["forwards"]["verify"]) in table
    assert "ms to the first block" in table
    one.page.check("#by-ms", force=True)
    one.seek(1_000_000)
    assert "ms" in one.page.locator("#clock-now").inner_text()
    assert one.answer("A") == one.answer("B")


def test_a_race_whose_outputs_differ_says_where(visit: Visiting, url: str) -> None:
    one = visit()
    one.ask(PROMPT)
    one.page.check("#race")
    one.choose("static", {}, 0)
    one.choose("dynamic", {"threshold": 0.1}, 1)
    one.run(lanes=2)
    texts = asked(url, mode="static"), asked(url, mode="dynamic", threshold=0.1)
    ids = [answer["token_ids"] for answer in texts]
    at = next(number for number, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1])
    assert one.page.locator(".same").inner_text() == f"Outputs differ from token {at + 1} on"


class Endless(Scripted):
    """One step, then nothing until the client leaves."""

    def __init__(self) -> None:
        step = {"block": 0, "kind": "denoise", "revealed": [(0, 5, 0.5)], "revoked": [], "drafted": [], "accepted": 0}
        super().__init__(Progress(0, 0, (step,), {5: "five"}, 0, 0.001), hangs=True)


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_request_and_keeps_what_came(visit: Visiting, serve: Serve, how: str) -> None:
    backend = Endless()
    one = visit(serve(backend))
    one.ask("anything")
    one.page.click("#run")
    one.page.wait_for_selector(".cell.backbone")
    assert backend.live == 1
    one.page.click("#stop") if how == "button" else one.page.keyboard.press("Escape")
    one.page.wait_for_selector(".status.bad")
    assert one.page.locator(".status").inner_text() == "stopped"
    assert one.page.locator(".cell.backbone").inner_text() == "five"
    assert one.page.locator("#notice .error").count() == 0
    one.page.wait_for_selector("#run:enabled")
    one.wait(lambda: backend.live == 0)


def test_steps_are_on_the_page_before_the_block_is_finished(visit: Visiting, serve: Serve) -> None:
    one = visit(serve(Endless()))
    one.ask("anything")
    one.page.click("#run")
    one.page.wait_for_selector(".cell.backbone")
    assert one.answer() == ""
    one.page.click("#stop")
    one.page.wait_for_selector("#run:enabled")


def test_an_error_is_shown_as_the_api_words_it(visit: Visiting, url: str) -> None:
    one = visit()
    one.expected = ("422",)
    one.ask(PROMPT)
    one.page.fill("#tokens", "1020")
    one.page.click("#run")
    one.page.wait_for_selector(".error")
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_new_tokens": 1020}
    error = httpx.post(f"{url}generate", json=body).json()["error"]
    assert error["message"] in one.notice()
    assert error["code"] in one.notice()
    assert "request" in one.notice()


def test_a_refusal_says_when_to_try_again(visit: Visiting, serve: Serve) -> None:
    one = visit(serve(Scripted(QueueFull("the queue is full", retry_after=3.0))))
    one.expected = ("429",)
    one.ask("anything")
    one.page.click("#run")
    one.page.wait_for_selector(".error")
    assert "the queue is full Try again in 3 s." in one.notice()


def test_an_error_in_the_midst_leaves_what_came(visit: Visiting, serve: Serve) -> None:
    [step] = Endless().items
    chunk = Chunk(0, "five", (5,), STATS)
    one = visit(serve(Scripted(step, chunk, NotReady("the replica is gone")), max_failovers=0))
    one.ask("anything")
    one.page.click("#run")
    one.page.wait_for_selector(".error")
    assert "the replica is gone" in one.notice()
    assert one.answer() == "five"
    assert one.page.locator(".status").inner_text() == "broken off"


def test_a_lost_connection_is_said_and_another_run_works(visit: Visiting, url: str) -> None:
    one = visit()
    one.expected = ("Failed to load", "net::ERR")
    one.ask(PROMPT)
    one.context.set_offline(True)
    one.page.click("#run")
    one.page.wait_for_selector(".error")
    assert "The connection was lost." in one.notice()
    one.context.set_offline(False)
    one.page.get_by_text("Try again").click()
    one.page.wait_for_selector(".status.good")
    one.seek(1_000_000)
    assert one.answer() == asked(url, mode="speculative", mrp_steps=4)["text"]


def test_a_stream_that_ends_too_early_is_a_lost_connection(visit: Visiting) -> None:
    one = visit()
    head = {"Content-Type": "text/event-stream"}
    one.page.route("**/generate", lambda route: route.fulfill(status=200, headers=head, body=": nothing\n\n"))
    one.ask(PROMPT)
    one.page.click("#run")
    one.page.wait_for_selector(".error")
    assert "The connection was lost after 0 blocks." in one.notice()


def test_a_link_restores_what_stands_in_the_form(visit: Visiting, url: str) -> None:
    first = visit()
    first.ask("Ann has 8 pens, loses 5 & gets 4 <b>#?", "plain")
    first.page.check("#race")
    first.choose("remask", {"threshold": 0.4}, 0)
    first.page.locator(".plan").nth(1).get_by_label("Quality", exact=True).check(force=True)
    first.page.locator(".plan").nth(1).locator(".choice label", has_text="fast").click()
    first.page.fill("#seed", "12345678901")
    first.page.click("#link")
    link = first.page.evaluate("navigator.clipboard.readText()")
    second = visit(link)
    for name in ("#prompt", "#seed", "#temperature", "#tokens"):
        assert second.page.input_value(name) == first.page.input_value(name)
    assert second.page.is_checked("#kind-plain")
    assert second.page.is_checked("#race")
    assert second.page.locator(".plan").nth(0).get_by_label("threshold", exact=True).input_value() == "0.4"
    assert second.page.locator(".choice input:checked").input_value() == "fast"
    assert second.page.locator("#code").inner_text() == first.page.locator("#code").inner_text()


@pytest.mark.parametrize(
    "rest", ["prompt=a&plan=nonsense", "prompt=a&plan=%7B%22mode%22%3A%22none%22%7D", "plan=1", "%%"]
)
def test_a_broken_link_gives_a_page_that_works(visit: Visiting, url: str, rest: str) -> None:
    one = visit(f"{url}#{rest}")
    one.ask(PROMPT)
    one.run()
    assert one.answer() == asked(url, mode="speculative", mrp_steps=4)["text"]


def test_a_key_is_asked_for_and_stays_in_the_tab(visit: Visiting, serve: Serve, demo: Replica) -> None:
    address = serve(LocalBackend(demo), api_keys=("the secret",))
    one = visit(address, ready=False)
    one.expected = ("401",)
    one.page.wait_for_selector("#key-form:visible")
    error = httpx.get(f"{address}v1/models").json()["error"]["message"]
    assert one.page.locator("#key-why").inner_text() == error
    one.page.fill("#key", "wrong")
    one.page.keyboard.press("Enter")
    one.until("document.getElementById('key-why').textContent.includes('wrong')")
    one.page.fill("#key", "the secret")
    one.page.keyboard.press("Enter")
    one.page.wait_for_selector("#run:enabled")
    assert one.page.is_hidden("#key-form")
    one.run()
    assert one.answer()
    one.page.reload()
    one.page.wait_for_selector("#run:enabled")
    assert one.page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href").count("secret") == 0
    for way in ("curl", "Python", "OpenAI client"):
        one.page.click(f"[data-way='{way}']")
        assert "the secret" not in one.page.locator("#code").inner_text()
        assert "MRP_SERVE_KEY" in one.page.locator("#code").inner_text()
    other = one.context.new_page()
    other.goto(address)
    other.wait_for_selector("#key-form:visible")


@pytest.mark.parametrize("plan", ["chat", "plain", "quality"])
def test_what_is_copied_works_as_it_is(visit: Visiting, url: str, plan: str, tmp_path: Any) -> None:
    one = visit()
    prompt = 'It\'s "5" \\ apples\n& é😀'
    one.ask(prompt, "plain" if plan == "plain" else "chat")
    one.choose("dynamic", {"threshold": 0.5})
    if plan == "quality":
        one.page.locator(".plan").first.get_by_label("Quality", exact=True).check(force=True)
    one.page.fill("#tokens", "30")
    one.run()
    for way in ("curl", "Python", "OpenAI client"):
        one.page.click(f"[data-way='{way}']")
        one.page.click("#copy")
        code = one.page.evaluate("navigator.clipboard.readText()")
        program = ["bash", "-c", code] if way == "curl" else [sys.executable, "-c", code]
        done = subprocess.run(program, capture_output=True, text=True, env=os.environ, timeout=120, check=True)
        said = json.loads(done.stdout)["text"] if way == "curl" else done.stdout.removesuffix("\n")
        assert said == one.answer(), way


def test_a_point_of_the_frontier_is_picked_and_marked(visit: Visiting, url: str) -> None:
    [model] = httpx.get(f"{url}v1/models").json()["data"]
    one = visit()
    entries = one.page.locator(".entry")
    best = best_at(model["quality"], model["quality"]["measured"]["concurrency"][-1])
    assert entries.count() == len(best) > 1
    for number, row in enumerate(best):
        entries.nth(number).click()
        assert one.page.locator(".plan select").first.input_value() == row["plan"]["mode"]
        assert entries.nth(number).get_attribute("aria-pressed") == "true"
        assert one.page.locator(".point.chosen").count() == one.page.locator("[aria-pressed=true].entry").count() == 1
    one.page.locator(".point").first.click()
    assert entries.first.get_attribute("aria-pressed") == "true"
    one.run()
    plan = best[0]["plan"]
    assert one.answer() == asked(url, mode=plan["mode"], **plan["knobs"])["text"]


def best_at(quality: dict[str, Any], load: int) -> list[dict[str, Any]]:
    """The plans on the frontier of a load, the fastest last."""
    speeds = [(row, next(one for one in row["speed"] if one["concurrency"] == load)) for row in quality["frontier"]]
    best = [(row, speed["tokens_per_second"]) for row, speed in speeds if speed["on_frontier"]]
    return [row for row, _ in sorted(best, key=lambda pair: pair[1])]


def test_the_frontier_of_another_load_is_shown(visit: Visiting, url: str) -> None:
    [model] = httpx.get(f"{url}v1/models").json()["data"]
    one = visit()
    least = model["quality"]["measured"]["concurrency"][0]
    one.page.locator("#points .segments label").first.click()
    assert one.page.locator(".entry").count() == len(best_at(model["quality"], least))
    assert one.page.locator("#points .segments input:checked").get_attribute("value") == str(least)


def test_a_server_without_calibration_says_why(visit: Visiting, serve: Serve) -> None:
    one = visit(serve(Scripted()))
    assert one.page.locator("#points").inner_text() == "none was made"


def test_the_keyboard_is_enough(visit: Visiting) -> None:
    one = visit()
    one.page.focus("#prompt")
    one.page.keyboard.press("Control+Enter")
    one.page.wait_for_selector(".status.good")
    one.page.wait_for_selector("#run:enabled")
    one.page.focus("#slider")
    one.page.keyboard.press("Home")
    assert one.number("forwards") == "0"
    one.page.keyboard.press("ArrowRight")
    assert one.number("forwards") == "1"
    assert one.page.get_attribute("#slider", "aria-valuetext") == "after forward 1"
    one.page.keyboard.press("End")
    assert one.answer()
    reached = set()
    one.page.focus("#theme")
    for _ in range(60):
        one.page.keyboard.press("Tab")
        reached.add(one.page.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0]"))
    assert {"prompt", "race", "run", "link", "cell", "slider", "play", "pace", "entry", "copy"} <= reached


def test_screen_readers_get_the_whole_answer_once(visit: Visiting) -> None:
    one = visit()
    one.run()
    assert one.page.locator("#say").inner_text().endswith(f"The answer: {one.answer()}")
    assert one.page.locator(".flow").get_attribute("aria-hidden") == "true"


def test_without_less_motion_the_answer_plays_and_stops_at_its_end(visit: Visiting) -> None:
    one = visit(reduced_motion="no-preference")
    one.page.select_option("#pace", "20")
    one.page.click("#run")
    one.until("document.getElementById('play').textContent === 'Pause'")
    one.until("document.getElementById('play').textContent === 'Play'")
    assert one.page.input_value("#slider") == one.page.get_attribute("#slider", "max")


def test_the_theme_stays(visit: Visiting) -> None:
    one = visit()
    one.page.click("#theme")
    one.page.click("#theme")
    assert one.page.get_attribute("html", "data-theme") == "dark"
    dark = one.page.evaluate("getComputedStyle(document.body).backgroundColor")
    one.page.reload()
    one.page.wait_for_selector("#run:enabled")
    assert one.page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


@pytest.mark.parametrize("width", [320, 390, 768, 1360])
def test_no_width_needs_scrolling_to_the_side(visit: Visiting, width: int) -> None:
    one = visit(viewport={"width": width, "height": 800})
    one.page.check("#race")
    one.run(lanes=2)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width


# --- hostile output --------------------------------------------------------------------------------

HOSTILE = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "\u202e\u2066right to left\u200f\u061c",
    "x" * 10_000,
    "</span></p><style>*{display:none}</style>",
    "event: done\ndata: {}\n\n",
    "\u0000\ufffd\U0001f600",
)


def hostile_items() -> list[Any]:
    items: list[Any] = []
    for number, text in enumerate(HOSTILE):
        revealed = [(position, 10 * number + position, 0.5) for position in range(4)]
        step = {"block": number, "kind": "denoise", "revealed": revealed, "revoked": [], "drafted": [], "accepted": 0}
        texts = {10 * number + position: text for position in range(4)}
        items.append(Progress(number, 0, (step,), texts, 0, 0.001 * number))
        ids = tuple(10 * number + position for position in range(4))
        items.append(Chunk(number, text * 4, ids, STATS))
    return [*items, Ending("length", 3, 4 * len(HOSTILE), STATS)]


def test_hostile_output_does_no_harm(visit: Visiting, serve: Serve) -> None:
    examples = tuple(Example(text[:60], text=text) for text in HOSTILE)
    card = replace(CARD, name="<script>window.hit = 1</script>", examples=examples)
    one = visit(serve(Scripted(*hostile_items(), serves=card)), viewport={"width": 800, "height": 800})
    one.ask("anything")
    one.run()
    whole = "".join(text * 4 for text in HOSTILE)
    assert one.answer() == one.flow() == whole
    for block in range(len(HOSTILE)):
        one.seek(block + 1)
        one.page.locator(".cell").first.hover()
    assert one.page.evaluate("window.hit") is None
    assert one.page.locator("main script, main img, main style").count() == 0
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 800
    assert one.page.locator("#model b").inner_text() == "<script>window.hit = 1</script>"
    assert one.page.title() == "mrp-serve · see it denoise"


def test_inline_scripts_are_refused_even_where_one_got_in(visit: Visiting) -> None:
    one = visit()
    one.expected = ("Content Security Policy", "TrustedHTML", "Trusted Type")
    tried = """() => { try { document.body.innerHTML = '<img src=x onerror="window.hit=1">'; return 'let in'; }
        catch (error) { return error.name; } }"""
    assert one.page.evaluate(tried) == "TypeError"
    assert one.page.evaluate("window.hit") is None


# --- accessibility ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("race", [False, True])
def test_axe_finds_no_serious_fault(visit: Visiting, scheme: str, race: bool) -> None:
    axe_of = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    one = visit(color_scheme=scheme, bypass_csp=True)  # axe itself writes markup, which the page's policy refuses
    faults = _faults(one, axe_of.AXE_FILE_PATH.read_text("utf-8"))
    if race:
        one.page.check("#race")
    one.run(lanes=2 if race else 1)
    faults += _faults(one, axe_of.AXE_FILE_PATH.read_text("utf-8"))
    one.seek(4)
    one.page.locator(".cell").last.focus()
    faults += _faults(one, axe_of.AXE_FILE_PATH.read_text("utf-8"))
    assert faults == []


def _faults(one: Visit, axe: str) -> list[str]:
    one.page.evaluate(axe)
    found = one.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{fault['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for fault in found
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1280, 900), (390, 844)])
def test_run_is_above_the_fold_and_the_result_comes_into_view(visit: Visiting, width: int, height: int) -> None:
    one = visit()
    one.page.set_viewport_size({"width": width, "height": height})
    button = one.page.locator("#run").bounding_box()
    assert button is not None
    assert button["y"] + button["height"] < height
    assert "Ctrl + Enter runs" in one.page.locator(".actions").inner_text()
    one.ask(PROMPT)
    one.choose("static", PLANS["static"])
    one.run()
    cells = one.page.locator("#lanes .tape, #lanes").first.bounding_box()
    assert cells is not None
    assert 0 <= cells["y"] < height
