"""report.html: a self-contained page with answers in words, the pictures, and a table of all points."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from loadtest.report import figures, words
from loadtest.report.result import Result

_TEMPLATE = Path(__file__).parent / "report.html.j2"

#: measures of a column (two are a pair of percentiles) and its heading
_COLUMNS = (
    (("requests",), "requests"),
    (("failed",), "failed"),
    (("unfinished",), "unfinished"),
    (("tokens_per_s",), "tokens/s"),
    (("requests_per_s",), "requests/s"),
    (("good_per_s",), "good/s"),
    (("good_tokens_per_s",), "good tokens/s"),
    (("first_block_p50_ms", "first_block_p95_ms"), "first block ms"),
    (("gap_p50_ms", "gap_p95_ms"), "between blocks ms"),
    (("total_p50_ms", "total_p95_ms"), "whole answer ms"),
    (("tokens_per_forward",), "tokens per forward"),
    (("rows_per_forward",), "engine: rows per forward"),
    (("engine_forward_ms",), "engine: ms per forward"),
    (("client_cpu",), "client's cores"),
)


@dataclass(frozen=True)
class Picture:
    """A picture with its description."""

    path: Path
    caption: str

    @property
    def data(self) -> str:
        """The picture as data for the page."""
        return base64.b64encode(self.path.read_bytes()).decode()


def write(result: Result, folder: Path) -> Path:
    """Writes the PNGs and the page. Returns the path of the page."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["number"] = words.number
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    drawn = list(pictures(result, folder))
    text = template.render(result=result, answers=list(words.answers(result)), pictures=drawn, columns=_COLUMNS)
    page = folder / "report.html"
    page.write_text(text, encoding="utf-8")
    return page


def pictures(result: Result, folder: Path) -> Iterator[Picture]:
    """The pictures for which there are points."""
    slo = result.scenario.slo
    if modes := result.modes:
        yield _drawn(folder / "throughput.png", words.THROUGHPUT, figures.throughput, modes, slo)
        yield _drawn(folder / "latency.png", words.LATENCY, figures.latency, modes, slo)
        yield _drawn(folder / "forwards.png", words.FORWARDS, figures.forwards, modes)
    if pairs := result.pairs:
        alone, mixed = zip(*pairs, strict=True)
        yield _drawn(folder / "together.png", words.TOGETHER, figures.together, alone, mixed)
    if open_loops := result.arrivals:
        yield _drawn(folder / "arrivals.png", words.ARRIVALS, figures.arrivals, open_loops, slo)


def _drawn(path: Path, caption: str, draw: Callable[..., None], *what: Any) -> Picture:
    draw(*what, path)
    return Picture(path, caption)
