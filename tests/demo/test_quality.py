"""The shipped calibration is of the shipped checkpoint. After a change of either: `make calibrate`."""

from service.demo import CHECKPOINT
from service.model import parse_config, read_config
from service.quality.frontier import choose, is_lossless
from service.quality.presets import presets_of
from service.quality.schema import read_quality


def test_it_is_of_these_weights():
    presets = presets_of(CHECKPOINT, parse_config(read_config(CHECKPOINT)))
    assert presets.missing is None, "run `make calibrate`"
    assert presets.plans.keys() == {"lossless", "balanced", "fast"}


def test_its_presets_are_what_its_rows_say():
    file = read_quality(CHECKPOINT / "quality.json")
    chosen = choose(file.rows, file.measured.chosen_at, file.margins)
    assert file.presets == {name: row.plan for name, row in chosen.items()}
    assert is_lossless(file.presets["lossless"].params)
    assert file.measured.prompts >= 200
    for row in file.rows:
        if row.lossless:
            assert row.identical == row.prompts
