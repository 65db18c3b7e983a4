"""Which checkpoints MRP can learn from."""

from dataclasses import replace

import pytest

from service.errors import SettingsError
from service.replica.start import check_learning
from tests.tiny import GOLDEN_NAMES, I_DLM_NAME, golden

CONFIG = golden(GOLDEN_NAMES[0]).config


def test_a_module_with_wide_matrices_can_learn():
    check_learning(CONFIG)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(CONFIG, mrp=None), "the checkpoint has no MRP"),
        (replace(CONFIG, quantization="fp8"), "the checkpoint's matrices have 8 bits"),
        (replace(golden(I_DLM_NAME).config, mrp=CONFIG.mrp), "training does not know causal models"),
    ],
    ids=["no MRP", "8 bits", "causal"],
)
def test_a_checkpoint_that_cannot_learn_is_refused(config, reason):
    with pytest.raises(SettingsError, match=f"^online_mrp_dir is set, but {reason}") as caught:
        check_learning(config)
    assert caught.value.param == "online_mrp_dir"
