"""The picture has a panel for every load, with curves of modes, presets and a frontier, for light and dark pages."""

import pytest
from matplotlib.collections import PathCollection
from matplotlib.text import Text

from dev.pictures.frontier import PAGES, frontier_figure
from service.demo import CHECKPOINT
from service.quality.calibration.pareto import assemble
from service.quality.schema import FILE_NAME, read_quality
from tests.quality.made_up import BY_LOAD, IDENTITY, MEASURED, made_up_file

FILES = {
    "made up": made_up_file(),
    "by load": assemble(IDENTITY, MEASURED, BY_LOAD),
    "demo": read_quality(CHECKPOINT / FILE_NAME),
}


def test_every_load_has_a_panel_with_its_presets_and_its_frontier():
    """The frontier of a lone request is not that of 16 requests, and another plan is a preset."""
    file = FILES["by load"]
    figure = frontier_figure(file, PAGES[0])
    alone, together, _ = figure.axes
    assert [alone.get_title(), together.get_title()] == ["One request", "16 requests together"]
    rings = [
        [float(bars.get_offsets()[0][0]) for bars in axes.collections if isinstance(bars, PathCollection)]
        for axes in (alone, together)
    ]
    assert rings == [pytest.approx([200.0, 300.0]), [1000.0, 1500.0]]  # lossless: speculative, the others: dynamic
    for axes, load in ((alone, 1), (together, 16)):
        [line] = [line for line in axes.lines if line.get_gid() == "frontier"]
        best = {row.speed_at(load).tokens_per_second for row in file.rows if row.speed_at(load).on_frontier}
        assert set(line.get_xdata()) == best
    texts = [text.get_text() for text in figure.findobj(Text)]
    for name in ("lossless", "balanced", "fast"):
        assert sum(name in text.split(" = ") for text in texts) == 2
    assert {"static", "dynamic", "tokens per forward"} <= set(texts)
