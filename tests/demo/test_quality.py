"""The shipped calibration is of the shipped checkpoint. After a change of either: `make calibrate`."""

from service.demo import CHECKPOINT
from service.model import parse_config, read_config
from service.quality.calibration.pareto import assemble, is_lossless
from service.quality.presets import presets_of
from service.quality.schema import read_quality


def test_it_is_of_these_weights():
    presets = presets_of(CHECKPOINT, parse_config(read_config(CHECKPOINT)))
    assert presets.missing is None, "run `make calibrate`"
    assert presets.plans.keys() == {"lossless", "balanced", "fast"}


def test_its_presets_are_what_its_rows_say():
    file = read_quality(CHECKPOINT / "quality.json")
    made = assemble(file.checkpoint, file.measured, file.rows, file.margins)
    assert (file.presets, file.sampled_presets) == (made.presets, made.sampled_presets)
    assert all(is_lossless(plan.decoding_mode) for plan in file.presets["lossless"])
    rows = {row.plan.name: row for row in file.rows}
    for name, margin in (("balanced", file.margins.balanced), ("fast", file.margins.fast)):
        assert all(rows[plan.name].difference_low >= -margin for plan in file.presets[name])
        assert all(rows[plan.name].sampled_difference_low >= -margin for plan in file.sampled_presets[name])
    assert file.measured.prompts >= 200
    for row in file.rows:
        if row.lossless:
            assert row.identical == row.prompts
