"""The picture of a frontier, for light and dark pages, of files with one load and with several."""

import pytest
from matplotlib.image import imread

from dev.pictures.frontier import draw_frontier
from service.quality.calibration.pareto import assemble
from tests.quality.made_up import BY_LOAD, IDENTITY, MEASURED, made_up_file

FILES = {"one load": made_up_file(), "several loads": assemble(IDENTITY, MEASURED, BY_LOAD)}


@pytest.mark.parametrize("name", FILES)
def test_pictures_for_light_and_dark_pages(name, tmp_path):
    light, dark = draw_frontier(FILES[name], tmp_path)
    assert (light.name, dark.name) == ("frontier.png", "frontier-dark.png")
    assert imread(light)[0, 0, 0] > 0.9 > 0.2 > imread(dark)[0, 0, 0]
