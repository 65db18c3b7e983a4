"""The page in a browser, against a real server on the demo."""

import json
import re
import subprocess
from contextlib import redirect_stdout
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from io import StringIO
from operator import itemgetter
from typing import Any

import httpx
import pytest

from dev.pictures.filling import Answer, moments
from service.decode.block import Pick, Step
from service.decode.modes import MODES
from service.errors import NotReady, QueueFull
from service.messages.replica_status import Example
from service.messages.wire import Chunk, Ending, Progress
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.local import LocalBackend

PROMPT = "Tom has 5 apples, gets 3, loses 2."
PLANS: dict[str, dict[str, Any]] = {
    "static": {"tokens_per_step": 2},
    "dynamic": {"threshold": 0.5},
    "sequential": {"entropy_bound": 0.1},
    "entropy": {"entropy_bound": 0.1},
    "direct": {"mrp_steps": 2},
    "speculative": {"mrp_steps": 4},
    "remask": {"threshold": 0.5},
    "edit": {"edit_threshold": 0.9},
}
EXAMPLES = (Example("once", text="once"),)


def generated(url, **fields):
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "seed": 17, "max_new_tokens": 256}
    answer: dict[str, Any] = httpx.post(f"{url}generate", json=body | fields, timeout=60).raise_for_status().json()
    return answer


def served_model(url):
    [model] = httpx.get(f"{url}v1/models").json()["data"]
    return dict(model)


def rounded(value):
    return str(Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP))


# --- runs ------------------------------------------------------------------------------------------


def picture_moments(answer, block_size):
    """What the pictures of docs/ show of an answer's trace: the forwards so far and the states of all cells."""
    blocks: list[list[Step]] = [[] for _ in range(answer["trace"][-1]["block"] + 1)]
    for step in answer["trace"]:
        revealed, drafted = (tuple(Pick(*pick) for pick in step[name]) for name in ("revealed", "drafted"))
        blocks[step["block"]].append(Step(step["kind"], revealed, tuple(step["revoked"]), drafted, step["accepted"]))
    usage, stopped = answer["usage"], answer["finish_reason"] == "stop"
    length = usage["completion_tokens"] + stopped
    for moment in moments(Answer("", blocks, block_size, usage["prompt_tokens"] % block_size, length), str):
        states = [[cell.source if cell.state in {"new", "old"} else cell.state for cell in b] for b in moment.blocks]
        yield moment.forwards, states


def test_a_run_shows_the_apis_text_numbers_and_every_moment_of_the_trace(page, url):
    page.fill(PROMPT)
    block_size = served_model(url)["block_size"]
    for mode in MODES:
        page.choose(mode, PLANS[mode])
        page.run()
        assert page.tab.locator(".title").inner_text().startswith(mode)
        answer = generated(url, mode=mode, **PLANS[mode], return_trace=True)
        forwards = answer["stats"]["forwards"]
        assert page.answer() == page.flow() == answer["text"], mode
        assert page.number("forwards") == str(forwards["denoise"] + forwards["verify"]), mode
        assert page.number("tokens per forward") == rounded(answer["stats"]["tokens_per_forward"]), mode
        pictures = list(picture_moments(answer, block_size))
        assert page.tab.get_attribute("#slider", "max") == str(len(pictures) - 1), mode
        for number, (moment, (denoised, blocks)) in enumerate(zip(page.moments(len(pictures)), pictures, strict=True)):
            block = re.match(r"Block (\d+)", moment["block"])
            assert block is not None
            states = [{"revoked": "masked", "beyond": "masked"}.get(state, state) for state in moment["states"]]
            assert states == blocks[int(block[1]) - 1], mode
            assert moment["forwards"] == str(denoised), mode
            assert moment["answer"] == "" or number > 0


def test_examples_knobs_and_limits_are_the_servers(page, url):
    model = served_model(url)
    plan = page.tab.locator(".plan").first
    assert plan.locator("select").first.locator("option").all_inner_texts() == model["modes"]
    page.open_more()
    for mode in model["modes"]:
        plan.locator("select").first.select_option(mode)
        assert plan.locator(".knob label").all_inner_texts() == list(model["mode_info"][mode]["knobs"])
    plan.locator("select").first.select_option("static")
    assert plan.get_by_label("tokens_per_step").get_attribute("title") == f"from 1 to {model['block_size']}; default: 1"
    assert page.tab.get_attribute("#tokens", "max") == str(model["max_model_len"])
    chips = page.tab.locator("#examples button")
    assert chips.all_inner_texts() == [example["title"] for example in model["examples"]]
    assert page.tab.input_value("#prompt") == PROMPT
    chips.last.click()
    assert page.tab.input_value("#prompt") == model["examples"][-1]["text"]
    assert page.tab.is_checked("#kind-plain")


def test_a_cell_tells_its_token_its_confidence_and_its_proposer(page):
    page.fill(PROMPT)
    page.choose("speculative", {"mrp_steps": 4})
    page.run()
    accepted = page.tab.locator(".cell.accepted").first
    accepted.hover()
    detail = page.tab.locator(".detail").inner_text()
    assert "accepted draft" in detail
    assert re.search(r"confidence [\d.]+ %", detail)
    assert re.search(r"forwards? \d+( to \d+)?: drafted", detail)
    accepted.focus()
    before = page.tab.evaluate("document.activeElement.getAttribute('aria-label')")
    page.tab.keyboard.press("ArrowRight")
    after = page.tab.evaluate("document.activeElement.getAttribute('aria-label')")
    assert before != after
    assert re.match(r"Position \d+: ", after)


def test_a_race_tells_whether_the_outputs_are_identical(page, url):
    page.fill(PROMPT)
    page.choose("speculative", {"mrp_steps": 4}, 0)
    page.choose("static", {}, 1)
    page.race()
    assert page.tab.locator(".same").inner_text() == "Identical output"
    assert '"mode": "speculative"' in page.tab.locator("#code").inner_text()
    last = page.tab.locator(".cell:not(.beyond)").last
    assert last.inner_text() == "<|end|>"
    assert last.locator(".text").evaluate(
        "text => text.scrollWidth <= text.clientWidth && text.scrollHeight <= text.clientHeight"
    )
    static = generated(url, mode="static")
    assert page.answer("A") == page.answer("B") == static["text"]
    table = page.tab.locator("table").inner_text()
    for stats in (generated(url, mode="speculative", mrp_steps=4)["stats"], static["stats"]):
        assert rounded(stats["tokens_per_forward"]) in table
        assert str(stats["forwards"]["denoise"] + stats["forwards"]["verify"]) in table
    assert "ms to the first block" in table
    page.choose("dynamic", {"threshold": 0.1}, 0)
    page.race()
    ids = generated(url, mode="dynamic", threshold=0.1)["token_ids"], static["token_ids"]
    index = next(number for number, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1])
    assert page.tab.locator(".same").inner_text() == f"Outputs differ from token {index + 1} on"


def test_a_point_of_the_frontier_is_picked_and_marked(page, url):
    quality, entries = served_model(url)["quality"], page.tab.locator(".entry")
    best = sorted(quality["frontier"], key=itemgetter("tokens_per_forward"))
    lossless, accuracies = entries.first, entries.filter(has_text="accuracy")
    lossless.click()
    assert lossless.get_attribute("aria-pressed") == "true"
    assert "the same text as static" in lossless.inner_text()
    assert entries.count() - 1 == accuracies.count() == len(best) > 1
    for number, row in enumerate(best, 1):
        entries.nth(number).click()
        assert page.tab.locator(".plan select").first.input_value() == row["plan"]["mode"]
        assert entries.nth(number).get_attribute("aria-pressed") == "true"
        assert page.tab.locator(".point.chosen").count() == page.tab.locator("[aria-pressed=true].entry").count() == 1
    page.tab.locator(".point").first.click()
    assert entries.nth(1).get_attribute("aria-pressed") == "true"
    page.run()
    plan = best[0]["plan"]
    assert page.answer() == generated(url, mode=plan["mode"], **plan["knobs"])["text"]


# --- the opening -----------------------------------------------------------------------------------


def test_the_page_opens_with_a_race_that_lets_other_requests_go_first(open_page, url):
    for size in ({"width": 1440, "height": 900}, {"width": 390, "height": 844}):
        page = open_page(viewport=size, reduced_motion="reduce")
        assert page.answer("A") == page.answer("B") == generated(url, mode="static")["text"]
        assert page.tab.locator(".same").inner_text() == "Identical output"
        assert "1.6 million parameters" in page.tab.locator("#intro").inner_text()
        assert page.tab.url == url
        run, race, lane = (page.tab.locator(name).bounding_box() for name in ("#run", "#race", "[data-lane=A]"))
        assert run["y"] == race["y"] < lane["y"] + 300 < size["height"]
    bodies = []
    page.tab.on("request", lambda request: request.method == "POST" and bodies.append(json.loads(request.post_data)))
    page.open(url)
    assert [(body["mode"], body["priority"], body["timeout_s"]) for body in bodies] == [
        ("speculative", 9, 10),
        ("static", 9, 10),
    ]


def test_a_link_and_a_busy_service_wait_for_a_click(page, open_page, serve, url):
    page.fill(PROMPT)
    page.wait(lambda: "#" in page.tab.url)
    page.open(page.tab.url)
    assert page.tab.locator("#notice").inner_text() == "The prompt comes from the link. Press Run or Race."
    assert page.tab.is_hidden("#stage")
    backend = Scripted(QueueFull("the queue is full", retry_after=3.0), serves=replace(CARD, examples=EXAMPLES))
    page = open_page(serve(backend, max_failovers=0))
    page.expected = ("429",)
    assert page.tab.locator("#notice").inner_text() == "The service is busy. Press Run or Race."
    assert page.tab.is_hidden("#demo")
    assert page.tab.is_hidden("#stage")
    assert "the queue is full" in page.run_to_error()
    page.tab.route("**/health", lambda route: route.fulfill(json={"status": "ok", "replicas_ready": 0}))
    page.open(page.url)
    assert page.tab.locator("#notice").inner_text() == "The service is busy. Press Run or Race."


def test_a_slow_line_shows_that_the_page_loads(new_tab, url):
    tab, routes = new_tab(), []

    def hold(route):
        routes.append(route)

    tab.route("**/v1/models", hold)
    tab.goto(url)
    assert "Loading" in tab.locator("#notice").inner_text()
    assert not any(map(tab.is_visible, ("#form", "#stage", "#points", "#code")))
    tab.wait_for_timeout(100)
    routes[0].continue_()
    tab.wait_for_selector("#run:enabled")
    assert tab.locator("#notice").inner_text() == ""
    tab.close()


def test_an_invalid_knob_stays_out_of_the_address_and_is_named_where_it_is(page):
    page.choose("speculative", {"max_drafts": 3})
    page.wait(lambda: "max_drafts" in page.tab.url)
    page.choose("speculative", {"max_drafts": 99})
    page.tab.locator("details").evaluate_all("all => all.forEach(details => { details.open = false; })")
    page.tab.click("#run")
    field = page.tab.get_by_label("max_drafts").first
    assert field.is_visible()
    assert field.evaluate("field => field.validationMessage") == "from 1 to 8; default: not set"
    page.tab.wait_for_timeout(400)
    assert "99" not in page.tab.url
    assert "99" not in page.tab.locator("[data-lane=A] .title").inner_text()  # the opening race may still begin


# --- streams that stop, and errors -----------------------------------------------------------------

STEP = Progress(
    0,
    0,
    ({"block": 0, "kind": "denoise", "revealed": [(0, 5, 0.5)], "revoked": [], "drafted": [], "accepted": 0},),
    {5: "five"},
    0,
    0.001,
)


def test_stop_ends_the_request_and_keeps_the_steps_so_far(open_page, serve):
    """Steps are on the page before their block is finished."""
    backend = Scripted(STEP, hangs=True)
    page = open_page(serve(backend))
    page.fill("anything")
    for stop in (lambda: page.tab.click("#stop"), lambda: page.tab.keyboard.press("Escape")):
        page.tab.click("#run")
        page.tab.wait_for_selector(".cell.backbone")
        assert (backend.live, page.answer()) == (1, "")
        stop()
        page.tab.wait_for_selector(".status.bad")
        assert page.tab.locator(".status").inner_text() == "stopped"
        assert page.tab.locator(".cell.backbone").inner_text() == "five"
        assert page.tab.locator("#notice .error").count() == 0
        page.tab.wait_for_selector("#run:enabled")
        page.wait(lambda: backend.live == 0)


def test_cells_move_with_their_tokens(open_page, serve):
    """The second token is deleted, and a new one comes at the end."""
    revealed = [(position, position, 0.5) for position in range(4)]
    steps: tuple[Any, ...] = (
        {"block": 0, "kind": "denoise", "revealed": revealed, "revoked": [], "drafted": [], "accepted": 0},
        {"block": 0, "kind": "denoise", "revealed": [(3, 9, 0.5)], "revoked": [1], "drafted": [], "accepted": 0}
        | {"moved": [0, 2, 3, -1]},
    )
    texts = {token: f"t{token} " for token in (0, 1, 2, 3, 9)}
    answer = (Chunk(0, "t0 t2 t3 t9 ", (0, 2, 3, 9), STATS), Ending("length", 3, 4, STATS))
    page = open_page(serve(Scripted(Progress(0, 0, steps, texts, 0, 0.001), *answer)))
    page.fill("anything")
    page.run()
    assert page.answer() == page.flow() == "t0 t2 t3 t9 "
    assert page.seek(1)["states"] == page.seek(2)["states"] == ["backbone"] * 4


def test_errors_are_shown_as_the_api_words_them(open_page, serve):
    """Before the first block with the time to try again, and in the midst with the blocks that came."""
    backend = Scripted(QueueFull("the queue is full", retry_after=3.0))
    page = open_page(serve(backend, max_failovers=0))
    assert page.tab.locator("#points").inner_text() == "none was made"  # a server without calibration
    page.expected = ("429",)
    page.fill("anything")
    assert "the queue is full Try again in 3 s." in page.run_to_error()

    backend.items = (STEP, Chunk(0, "five", (5,), STATS), NotReady("the replica is gone"))
    assert "the replica is gone" in page.run_to_error()
    assert (page.answer(), page.tab.locator(".status").inner_text()) == ("five", "broken off")


def test_a_lost_connection_is_named_and_another_run_works(page, url):
    page.expected = ("Failed to load", "net::ERR")
    page.fill(PROMPT)
    answers = page.answer("A"), page.answer("B")
    page.context.set_offline(True)
    assert "The connection was lost." in page.run_to_error()
    assert answers == (page.answer("A"), page.answer("B"))
    assert page.tab.locator(".status.good").count() == 2
    assert page.tab.locator(".same").inner_text() == "Identical output"
    page.context.set_offline(False)
    page.tab.get_by_text("Try again").click()
    page.wait(lambda: page.tab.locator(".status.good").count() == 1)
    page.tab.wait_for_selector("#run:enabled")
    assert page.seek(1_000_000)["answer"] == generated(url, mode="speculative", mrp_steps=4)["text"]


# --- links, keys and snippets ----------------------------------------------------------------------


def test_a_link_restores_the_form(page):
    def form():
        values = [page.tab.input_value(name) for name in ("#prompt", "#seed", "#temperature", "#tokens")]
        return [*values, page.tab.locator("#code").inner_text()]

    page.fill("Ann has 8 pens, loses 5 & gets 4 <b>#?", "plain")
    page.choose("remask", {"threshold": 0.4}, 0)
    page.choose_quality("fast", lane=1)
    page.open_more()
    page.tab.fill("#seed", "12345678901")
    page.tab.click("#link")
    link, before = page.tab.evaluate("navigator.clipboard.readText()"), form()
    page.open(link)
    assert form() == before
    assert page.tab.is_checked("#kind-plain")
    assert page.tab.locator(".plan").nth(0).get_by_label("threshold", exact=True).input_value() == "0.4"
    assert page.tab.locator(".choice input:checked").input_value() == "fast"


def test_a_broken_link_gives_a_page_that_works(page, url):
    for fields in ("prompt=a&plan=nonsense", "prompt=a&plan=%7B%22mode%22%3A%22none%22%7D", "plan=1", "%%"):
        page.open(f"{url}#{fields}")
        assert page.tab.locator(".plan select").first.input_value() == "speculative"
    page.fill(PROMPT)
    page.run()
    assert page.answer() == generated(url, mode="speculative", mrp_steps=4)["text"]


def test_a_key_is_requested_and_stays_in_the_tab(open_page, serve, demo):
    address = serve(LocalBackend(demo), api_keys=("the secret",))
    page = open_page(address, ready=False)
    page.expected = ("401",)
    page.tab.wait_for_selector("#key-form:visible")
    error = httpx.get(f"{address}v1/models").json()["error"]["message"]
    assert page.tab.locator("#key-why").inner_text() == error
    page.tab.fill("#key", "wrong")
    page.tab.keyboard.press("Enter")
    page.wait(lambda: "wrong" in page.tab.locator("#key-why").inner_text())
    page.tab.fill("#key", "the secret")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("#run:enabled")
    assert page.tab.is_hidden("#key-form")
    page.run()
    assert page.answer()
    page.tab.evaluate("history.replaceState(null, '', location.pathname)")
    page.tab.reload()
    page.tab.wait_for_selector("#run:enabled")
    assert page.tab.locator("#notice").inner_text() == "Each request counts for your API key. Press Run or Race."
    assert page.tab.is_hidden("#stage")
    assert "secret" not in page.tab.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    for way in ("curl", "Python", "OpenAI client"):
        page.tab.click(f"[data-way='{way}']")
        assert "the secret" not in page.tab.locator("#code").inner_text()
        assert "MRP_SERVE_KEY" in page.tab.locator("#code").inner_text()
    other = page.context.new_page()
    other.goto(address)
    other.wait_for_selector("#key-form:visible")


def printed_by_bash(code):
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout


def printed_by_python(code):
    """Not in a process of its own, which would import the clients again."""
    with redirect_stdout(StringIO()) as out:
        exec(code, {"__name__": "__main__"})
    return out.getvalue().removesuffix("\n")


@pytest.mark.parametrize(
    ("plan", "ways"),
    [("chat", ("curl", "Python", "OpenAI client")), ("plain", ("OpenAI client",)), ("quality", ("curl",))],
)
def test_a_copied_snippet_works_as_it_is(page, plan, ways):
    prompt = 'It\'s "5" \\ apples\n& é😀'
    page.fill(prompt, "plain" if plan == "plain" else "chat")
    page.choose("dynamic", {"threshold": 0.5})
    if plan == "quality":
        page.choose_quality()
    page.open_more()
    page.tab.fill("#tokens", "30")
    page.run()
    for way in ways:
        page.tab.click(f"[data-way='{way}']")
        page.tab.click("#copy")
        code = page.tab.evaluate("navigator.clipboard.readText()")
        output = json.loads(printed_by_bash(code))["text"] if way == "curl" else printed_by_python(code)
        assert output == page.answer(), way


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


def hostile_items():
    items: list[Any] = []
    for number, text in enumerate(HOSTILE):
        tokens = range(10 * number, 10 * number + 4)
        revealed = [(position, token, 0.5) for position, token in enumerate(tokens)]
        step = {"block": number, "kind": "denoise", "revealed": revealed, "revoked": [], "drafted": [], "accepted": 0}
        items.append(Progress(number, 0, (step,), dict.fromkeys(tokens, text), 0, 0.001 * number))
        items.append(Chunk(number, text * 4, tuple(tokens), STATS))
    return [*items, Ending("length", 3, 4 * len(HOSTILE), STATS)]


def test_hostile_output_does_no_harm(open_page, serve):
    examples = tuple(Example(text[:60], text=text) for text in HOSTILE)
    card = replace(CARD, name="<script>window.hit = 1</script>", examples=examples)
    page = open_page(serve(Scripted(*hostile_items(), serves=card)), viewport={"width": 800, "height": 800})
    page.fill("anything")
    page.run()
    assert page.answer() == page.flow() == "".join(text * 4 for text in HOSTILE)
    for block in range(len(HOSTILE)):
        page.seek(block + 1)
        page.tab.locator(".cell").first.hover()
    assert page.tab.evaluate("window.hit") is None
    assert page.tab.locator("main script, main img, main style").count() == 0
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 800
    assert page.tab.locator("#model b").inner_text() == "<script>window.hit = 1</script>"
    assert page.tab.title() == "mrp-serve · see it denoise"
    page.expected = ("Content Security Policy", "TrustedHTML", "Trusted Type")
    inline_script = """() => { try { document.body.innerHTML = '<img src=x onerror="window.hit=1">'; return 'let in'; }
        catch (error) { return error.name; } }"""
    assert page.tab.evaluate(inline_script) == "TypeError"
    assert page.tab.evaluate("window.hit") is None


# --- accessibility and layout ----------------------------------------------------------------------


def test_the_keyboard_is_enough_and_screen_readers_get_the_answer_once(page):
    page.tab.focus("#prompt")
    page.tab.keyboard.press("Control+Enter")
    page.tab.wait_for_selector(".status.good")
    page.tab.wait_for_selector("#run:enabled")
    page.tab.focus("#slider")
    page.tab.keyboard.press("Home")
    assert page.number("forwards") == "0"
    page.tab.keyboard.press("ArrowRight")
    assert page.number("forwards") == "1"
    assert page.tab.get_attribute("#slider", "aria-valuetext") == "after forward 1"
    page.tab.keyboard.press("End")
    assert page.answer()
    assert page.tab.locator("#say").inner_text().endswith(f"The answer: {page.answer()}")
    assert page.tab.locator(".flow").get_attribute("aria-hidden") == "true"
    reached = set()
    page.tab.focus("#theme")
    for _ in range(60):
        page.tab.keyboard.press("Tab")
        reached.add(page.tab.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0]"))
    assert {"prompt", "race", "run", "link", "cell", "slider", "play", "pace", "entry", "copy"} <= reached


def test_without_less_motion_the_answer_plays_and_stops_at_its_end(open_page):
    page = open_page(reduced_motion="no-preference")
    page.tab.select_option("#pace", "20")
    page.tab.click("#run")
    for label in ("Pause", "Play"):
        page.wait(lambda: page.tab.locator("#play").inner_text() == label)  # noqa: B023 - called at once
    assert page.tab.input_value("#slider") == page.tab.get_attribute("#slider", "max")


def test_a_race_fits_any_width_and_axe_finds_no_serious_fault_in_it(open_page):
    """The race has all that a single run has, and two lanes, a verdict and a table besides."""
    page = open_page(bypass_csp=True)  # axe itself writes markup, which the page's policy refuses
    page.race()
    for width in (320, 390, 768, 1360):
        page.tab.set_viewport_size({"width": width, "height": 800})
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    page.seek(4)
    page.tab.locator(".cell").last.focus()
    page.tab.evaluate(axe.AXE_FILE_PATH.read_text("utf-8"))
    for scheme in ("light", "dark"):
        page.tab.emulate_media(color_scheme=scheme)
        violations = page.tab.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        faults = [
            f"{fault['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
            for fault in violations
            if fault["impact"] in {"serious", "critical"}
            for node in fault["nodes"]
        ]
        assert faults == [], scheme
