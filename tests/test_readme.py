"""README and docs/ are true: commands answer as written, and tables of modes have every mode and knob."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from service.decode.block import Step
from service.decode.knobs import knobs_in
from service.decode.modes import MODES, Speculative
from service.demo import CHECKPOINT
from service.engine import EngineDeps
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.engine.helpers import CHEAP_ROWS
from tests.gateway.helpers import over
from tests.replicas import local_generator

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESEARCH = (ROOT / "docs" / "research.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
CONSTRAINTS = (ROOT / "docs" / "constraints.md").read_text(encoding="utf-8")
PLAYGROUND = (ROOT / "docs" / "playground.md").read_text(encoding="utf-8")
SCORE = (ROOT / "docs" / "score.md").read_text(encoding="utf-8")
MODES_PAGE = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table[0].splitlines()[2:]]


def bodies() -> Iterator[Any]:
    """Every route and body that a page hands to curl, with the page's name."""
    for page in PAGES:
        curl = r"^curl \S+ http://127.0.0.1:8000(/\S+) [^']*'[^']*' -d '(.*?)'"
        matches = re.findall(curl, page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        for number, (route, body) in enumerate(matches):
            yield pytest.param(route, body, id=f"{page.name} {number}")


@pytest.fixture(scope="module")
def demo() -> Iterator[Replica]:
    settings = Settings(device="cpu", dtype="float32")
    checkpoint = load_checkpoint(CHECKPOINT)
    generator = local_generator("r0", checkpoint, settings, deps=EngineDeps(costs=CHEAP_ROWS))
    yield generator
    generator.close()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The costs of forwards are known, where the library would measure them."""
    monkeypatch.setattr("service.engine.engine.measure", lambda *_, **__: CHEAP_ROWS)


@pytest.fixture
async def http(demo: Replica) -> Any:
    async with over(demo) as client:
        yield client


@pytest.mark.parametrize(("route", "body"), list(bodies()))
async def test_every_curl_is_answered(http: httpx.AsyncClient, route: str, body: str) -> None:
    answer = await http.post(route, json=json.loads(body))
    assert answer.status_code == 200, answer.text


def part_of(part: Any, whole: Any) -> bool:
    """Whether every field of `part` stands in `whole` with the same value."""
    if isinstance(part, dict):
        return all(key in whole and part_of(value, whole[key]) for key, value in part.items())
    return bool(part == whole)


async def test_the_first_curl_gets_the_answer_that_stands_below_it(http: httpx.AsyncClient) -> None:
    [requests] = re.findall(r"-d '(.*?)'", README, re.DOTALL)
    [written] = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    assert part_of(json.loads(written), (await http.post("/generate", json=json.loads(requests))).json())


async def test_the_streams_first_blocks_are_those_of_the_page(http: httpx.AsyncClient) -> None:
    requests = re.findall(r"-d '(.*?)'", QUICKSTART, re.DOTALL)[-1]
    written = [json.loads(line) for line in re.findall(r"^data: (.*)$", QUICKSTART, re.MULTILINE)]
    answer = (await http.post("/generate", json=json.loads(requests))).text
    frames = [json.loads(line) for line in re.findall(r"^data: (.*)$", answer, re.MULTILINE)]
    assert all(part_of(*pair) for pair in zip(written, frames, strict=False))


async def test_the_plan_that_is_said_to_run_is_one_of_the_quality(http: httpx.AsyncClient) -> None:
    request = json.loads(re.findall(r"-d '(.*?)'", QUICKSTART, re.DOTALL)[0])
    [(mode, knobs)] = re.findall(r'`"mode": ("\w+")`, `"knobs": (\{.*?\})`', QUICKSTART)
    [model] = (await http.get("/v1/models")).json()["data"]
    plans = [(plan["mode"], plan["knobs"]) for plan in model["quality"]["presets"][request["quality"]]]
    answer = (await http.post("/generate", json=request)).json()
    assert (answer["mode"], answer["knobs"]) in plans
    assert (json.loads(mode), json.loads(knobs)) in plans


async def test_the_constrained_answer_is_the_text_that_stands_below_it(http: httpx.AsyncClient) -> None:
    requests = re.findall(r"-d '(.*?)'", CONSTRAINTS, re.DOTALL)[0]
    [written] = re.findall(r"The demo's `text` is `(.*?)`\.", CONSTRAINTS)
    answer = (await http.post("/generate", json=json.loads(requests))).json()
    assert (answer["text"], answer["constraint_met"]) == (written, True)


def divided(frames: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[float]]:
    """What is the same on every machine, and the confidences, which processors round differently."""
    tokens = [{name: frame[name] for name in ("revealed", "drafted") if name in frame} for frame in frames]
    sure = [entry[2] for frame in tokens for entries in frame.values() for entry in entries]
    pairs = [{name: [entry[:2] for entry in entries] for name, entries in frame.items()} for frame in tokens]
    remaining = [{name: frame[name] for name in frame.keys() - {"ms", "stats"}} for frame in frames]
    return [text_line | other for text_line, other in zip(remaining, pairs, strict=True)], sure


async def test_the_first_events_are_those_of_the_playgrounds_page(http: httpx.AsyncClient) -> None:
    [body] = re.findall(r"-d '(.*?)'", PLAYGROUND, re.DOTALL)
    written = [json.loads(line) for line in re.findall(r"^data: (.*)$", PLAYGROUND, re.MULTILINE)]
    text = (await http.post("/generate", json=json.loads(body))).text
    frames = [json.loads(line) for line in re.findall(r"^data: (.*)$", text, re.MULTILINE)]
    assert [frame.get("kind") for frame in written] == ["denoise", "verify", None]
    (facts, confidences), (expected, sure) = divided(frames[:3]), divided(written)
    assert facts == expected
    assert confidences == pytest.approx(sure, abs=1e-3)


async def test_the_scores_are_those_of_the_page(http: httpx.AsyncClient) -> None:
    [body] = re.findall(r"-d '(.*?)'", SCORE, re.DOTALL)
    [written] = re.findall(r"```json\n(.*?)```", SCORE, re.DOTALL)
    [text] = (await http.post("/v1/score", json=json.loads(body))).json()["data"]
    for position, expected in zip(text["positions"], json.loads(written)["data"][0]["positions"], strict=True):
        assert position["position"] == expected["position"]
        assert position["scores"] == pytest.approx(expected["scores"], abs=1e-4)


def examples(text: str) -> Iterator[tuple[str, str]]:
    """Every example in Python that the text's next block shows the output of, and this output."""
    yield from re.findall(r"```python\n((?:(?!```).)*?)```\n[^`]*```text\n(.*?)```", text, re.DOTALL)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("page", "number"), [(QUICKSTART, 1), (RESEARCH, 3)], ids=["quickstart", "research"])
def test_the_librarys_examples_print_the_text_below_them(
    page: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(list(examples(page))) == number
    for example, printed in examples(page):
        exec(example, {})
        assert capsys.readouterr().out == printed


def test_the_page_names_every_field_of_a_step() -> None:
    assert [row[0].strip("`| ") for row in rows(RESEARCH, "Traces")] == list(Step.__struct_fields__)


@pytest.mark.usefixtures("library")
def test_the_readmes_library_gives_the_answer_of_its_curl(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "TextModel" in code]
    [written] = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out.strip() == json.loads(written)["text"]


def test_the_readmes_first_command_comes_early() -> None:
    """A reader stays for a reason and a command. Numbers live in docs/performance.md."""
    before = re.sub(r"!\[[^]]*\]\([^)]*\)|\]\([^)]*\)", " ", README.split("```", 1)[0])
    assert len(before.split()) <= 150
    assert len(re.findall(r"\d[\d.,]*", before)) <= 6
    assert len(README.splitlines()) <= 130


def test_every_mode_stands_in_the_readme_with_its_knobs() -> None:
    matches = {row[0]: row[1] for row in rows(README, "Modes")}
    assert matches == {
        f"`{name}`": ", ".join(f"`{knob}`" for knob in knobs_in(params)) for name, params in MODES.items()
    }


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_a_section_with_its_knobs_and_their_defaults(mode: str) -> None:
    defaults = {f"`{field.name}`": field.default for field in structs.fields(MODES[mode])}
    assert f"\n## `{mode}`\n" in MODES_PAGE
    written = {row[0]: row[2] for row in rows(MODES_PAGE, f"`{mode}`")} if defaults else {}
    assert list(written) == list(defaults) or mode == Speculative.name
    assert set(written) == set(defaults)
    for knob, default in defaults.items():
        assert default is None or written[knob].strip("`| ").partition(";")[0] == str(default)
