"""The picture is drawn for light and dark pages, and is the same for the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.image import imread
from matplotlib.text import Text
from numpy import unique

from benchmarks.style import look_of
from dev.pictures.frontier import PAGES, draw_frontier, frontier_figure
from service.decode.modes import MODES, Direct, Dynamic, Remask, Sequential, Static
from service.demo import CHECKPOINT
from service.quality.calibration.pareto import assemble
from service.quality.schema import FILE_NAME, read_quality
from tests.quality.made_up import BY_LOAD, IDENTITY, MEASURED, made_up_file, row

NEAR = [row(Static(), 1000), *(row(Dynamic(0.1 * n), 1000 + 2 * n, lost=20 - n) for n in range(1, 9))]
NEAR += [row(Remask(0.5), 1003, lost=17), row(Remask(0.6), 1004, lost=19), row(Direct(2), 1015, lost=9)]
FILES = {
    "made up": made_up_file(),
    "near": assemble(IDENTITY, MEASURED, NEAR),
    "fast at the edge": assemble(IDENTITY, MEASURED, [row(Static(), 1000), row(Sequential(entropy_bound=0.1), 3000)]),
    "by load": assemble(IDENTITY, MEASURED, BY_LOAD),
    "demo": read_quality(CHECKPOINT / FILE_NAME),
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    draw_frontier(made_up_file(), folder)
    return folder


def test_two_files_one_for_light_pages_and_one_for_dark(drawn: Path) -> None:
    assert {path.name for path in drawn.iterdir()} == {"frontier.png", "frontier-dark.png"}
    assert [paper(drawn / name) for name in ("frontier.png", "frontier-dark.png")] == ["#ffffff", "#0d1117"]


def test_presets_modes_and_axes_are_named() -> None:
    figure = frontier_figure(made_up_file(), PAGES[0])
    texts = [text.get_text() for text in figure.findobj(Text)]
    for name in ("lossless", "balanced", "fast"):
        assert sum(name in text.split(" = ") for text in texts) == 2
    assert {"static", "remask", "tokens per forward"} <= set(texts)


def test_every_load_has_a_panel_with_its_presets_and_its_frontier() -> None:
    """What is on the frontier of a lone request is not on that of 16, and another plan is a preset."""
    file = FILES["by load"]
    alone, together, _ = frontier_figure(file, PAGES[0]).axes
    assert [alone.get_title(), together.get_title()] == ["One request", "16 requests together"]
    rings = [[round(float(x), 3) for x, _ in bars.get_offsets()] for bars in alone.collections if ringed(bars)]
    assert rings == [[200.0], [300.0]]  # lossless: speculative, the others: dynamic
    assert [float(bars.get_offsets()[0][0]) for bars in together.collections if ringed(bars)] == [1000.0, 1500.0]
    for axes, load in ((alone, 1), (together, 16)):
        [line] = [line for line in axes.lines if line.get_gid() == "frontier"]
        best = {row.speed_at(load).tokens_per_second for row in file.rows if row.speed_at(load).on_frontier}
        assert set(line.get_xdata()) == best


def ringed(bars: object) -> bool:
    return isinstance(bars, PathCollection)


def paper(file: Path) -> str:
    """The background colour of a picture. Checks that ink covers a part of the picture."""
    pixels = (imread(file)[..., :3] * 255).round().astype(int)
    colours, counts = unique(pixels @ [0x10000, 0x100, 1], return_counts=True)
    assert 0.5 < counts.max() / counts.sum() < 0.98
    assert len(colours) > 50
    return f"#{colours[counts.argmax()]:06x}"


def test_again_the_same(drawn: Path, tmp_path: Path) -> None:
    again = draw_frontier(made_up_file(), tmp_path)
    assert len(again) == 2
    for path in again:
        assert path.read_bytes() == (drawn / path.name).read_bytes()


@pytest.fixture(scope="module", params=FILES)
def file(request):
    return FILES[request.param]


@pytest.fixture(scope="module")
def shown(file):
    """The file's figure for tests that only look at it."""
    return rendered(file)


def rendered(file):
    """A figure as it is saved, and its renderer."""
    figure = frontier_figure(file, PAGES[0])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return figure, canvas.get_renderer()


def test_labels_neither_overlap_nor_leave_the_axes(shown) -> None:
    figure, renderer = shown
    for number_of_panel, axes in enumerate(figure.axes):
        boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in axes.texts]
        is_of_a_load = number_of_panel < len(figure.axes) - 1
        assert len(boxes) >= 3 + is_of_a_load  # the lines' names and a preset's
        ground = axes.get_window_extent(renderer)
        for number, (name, box) in enumerate(boxes):
            assert ground.x0 - 1 <= box.x0, name
            assert box.x1 <= ground.x1 + 1, name
            assert ground.y0 - 1 <= box.y0, name
            assert box.y1 <= ground.y1 + 1, name
            assert not [other for other, its in boxes[:number] if box.overlaps(its)], name


def test_ticks_say_where_they_are() -> None:
    figure, _ = rendered(FILES["near"])
    left = figure.axes[0]
    left.set_yticks([0.875, 0.9, 0.925])
    left.set_xticks([1000, 1002.5])
    figure.canvas.draw()
    assert [label.get_text() for label in left.get_yticklabels()] == ["87.5%", "90%", "92.5%"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["1,000", "1,002.5"]


def test_a_mode_looks_the_same_whichever_others_are_there(file, shown) -> None:
    figure, _ = shown
    looks = {
        bars.get_label(): (to_hex(bars.lines[0].get_color()), bars.lines[0].get_marker())
        for bars in figure.axes[0].containers
    }
    expected = {mode: (to_hex(look_of(mode)["color"]), look_of(mode)["marker"]) for mode in MODES}
    assert {mode: look for mode, look in looks.items() if mode in MODES} == {
        mode: expected[mode] for mode in {row.plan.mode for row in file.rows}
    }


def test_no_two_modes_look_alike() -> None:
    assert len({tuple(look_of(mode).values()) for mode in [*MODES, "another"]}) == len(MODES) + 1
