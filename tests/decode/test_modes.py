"""The knobs of the modes: their ranges, and what an error says."""

import math

import pytest

from service.decode.mode import DecodingMode
from service.decode.modes import MODES, Direct, Dynamic, Edit, Entropy, Remask, Sequential, Speculative, Static
from service.decode.registry import default_knobs, make_mode
from service.errors import InvalidRequest

BLOCK = 8


COUNTS, THRESHOLDS, BOUNDS = (0, -1, BLOCK + 1), (0.0, -0.1, 1.01, math.nan, math.inf), (-0.1, math.nan, math.inf)


@pytest.mark.parametrize(
    ("kind", "knob", "allowed", "refused"),
    [
        (Static, "tokens_per_step", (1, BLOCK), COUNTS),
        (Sequential, "tokens_per_step", (1, BLOCK), COUNTS),
        (Direct, "mrp_steps", (1, BLOCK), COUNTS),
        (Speculative, "mrp_steps", (1, BLOCK), COUNTS),
        (Dynamic, "threshold", (1e-9, 0.5, 1.0), THRESHOLDS),
        (Direct, "threshold", (1e-9, 0.5, 1.0), THRESHOLDS),
        (Remask, "threshold", (1e-9, 0.5, 1.0), THRESHOLDS),
        (Edit, "threshold", (1e-9, 0.5, 1.0), THRESHOLDS),
        (Edit, "edit_threshold", (0.0, 0.5, 1.0), (-0.1, 1.01, math.nan, math.inf)),
        (Edit, "max_post_edit_steps", (0, 16, 256), (-1, 257)),
        (Speculative, "margin", (1e-9, 0.5, 1.0), THRESHOLDS),
        (Sequential, "entropy_bound", (0.0, 0.1, 100.0), BOUNDS),
        (Entropy, "entropy_bound", (0.0, 0.1, 100.0), BOUNDS),
    ],
)
def test_a_knob_out_of_range_is_named(kind: type, knob: str, allowed: tuple[float], refused: tuple[float]) -> None:
    for value in allowed:
        kind(**{knob: value}).check(BLOCK)
    for value in refused:
        with pytest.raises(InvalidRequest, match=rf"^{knob} is {value}, ") as caught:
            kind(**{knob: value}).check(BLOCK)
        assert caught.value.param == knob


def test_a_tree_of_drafts_needs_no_mrp_and_a_chain_does() -> None:
    for params in (Speculative(0, max_drafts=1), Speculative(BLOCK, max_drafts=BLOCK)):
        params.check(BLOCK)
    assert not Speculative(0, max_drafts=1).needs_mrp
    assert Speculative(1, max_drafts=4).needs_mrp
    for wrong, message in (
        (Speculative(0), "^mrp_steps is 0, which needs max_drafts"),
        (Speculative(-1, max_drafts=2), r"^mrp_steps is -1, allowed are 0 to 8 \(the block size\) and 'auto'$"),
        (Speculative(2, prompt_lookup_num_tokens=4), "^prompt_lookup_num_tokens is 4, which needs max_drafts"),
        (Speculative(prompt_lookup_num_tokens=9), "^prompt_lookup_num_tokens is 9, allowed are 0 to 8"),
        (Speculative(9), r"^mrp_steps is 9, allowed are 0 to 8 \(the block size\) and 'auto'$"),
        (Speculative("many"), r"^mrp_steps is many, allowed are 0 to 8 .* and 'auto'$"),
        (Direct("auto"), r"^mrp_steps is auto, allowed are 1 to 8 \(the block size\)$"),
        (Speculative("auto", max_drafts=9), "^max_drafts is 9, allowed are 1 to 8"),
        (Speculative(1, max_drafts=0), "^max_drafts is 0, allowed are 1 to 8"),
        (Speculative(1, max_drafts=9), "^max_drafts is 9, allowed are 1 to 8"),
        (Speculative(tokens_per_step=9), "^tokens_per_step is 9, allowed are 1 to 8"),
        (Speculative(threshold=0.0), "^threshold is 0.0, allowed is"),
        (
            Speculative(threshold=0.5, tokens_per_step=2),
            "^tokens_per_step is 2, drafts are verified against dynamic, who",
        ),
        (
            Speculative(threshold=0.5, verify="static"),
            "^threshold is 0.5, drafts are verified against static, whose knob",
        ),
        (
            Speculative(entropy_bound=0.5),
            "^entropy_bound is 0.5, drafts are verified against static, whose knobs are tok",
        ),
        (Speculative(entropy_bound=-1.0, verify="entropy"), "^entropy_bound is -1.0, allowed is 0 or more"),
        (Speculative(verify="remask"), "^verify is 'remask', allowed are static, dynamic, sequential, entropy$"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            wrong.check(BLOCK)


def test_verify_is_set_whenever_it_is_not_static() -> None:
    assert Speculative(threshold=0.5) == Speculative(threshold=0.5, verify="dynamic")
    assert Speculative(threshold=0.5).verify == "dynamic"
    assert Speculative().verify is None
    assert Speculative(tokens_per_step=2).verify is None
    assert Speculative(entropy_bound=0.1, verify="entropy").verify == "entropy"


def test_a_checkpoint_says_which_knobs_are_used_when_none_is_named() -> None:
    assert default_knobs("speculative", 4) == default_knobs("speculative", 0) == {"mrp_steps": "auto"}
    assert default_knobs("dynamic", 4) == {"threshold": 0.9}
    assert default_knobs("direct", 3) == {"mrp_steps": 3}


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        (Speculative(), Static()),
        (Speculative(tokens_per_step=3), Static(3)),
        (Speculative(threshold=0.4), Dynamic(0.4)),
        (Speculative(verify="dynamic"), Dynamic()),
        (Speculative(verify="sequential"), Sequential()),
        (Speculative(verify="sequential", tokens_per_step=2, entropy_bound=0.5), Sequential(2, 0.5)),
        (Speculative(verify="entropy", entropy_bound=0.5), Entropy(0.5)),
    ],
)
def test_speculative_says_whose_output_it_gives(params: Speculative, plain: DecodingMode) -> None:
    assert params.plain == plain
    assert params.rule == plain.rule


def test_entropies_are_asked_for_only_where_they_are_used() -> None:
    using = (Entropy(), Sequential(entropy_bound=0.1), Speculative(verify="entropy"))
    assert all(params.rule.needs_entropy for params in using)
    modes = (*(kind() for kind in MODES.values() if kind is not Entropy), Speculative(verify="sequential"))
    assert not any(params.rule.needs_entropy for params in modes)


@pytest.mark.parametrize("params", [kind() for kind in MODES.values()])
def test_defaults_are_allowed_at_the_published_block_sizes(params: DecodingMode) -> None:
    for size in (4, 8, 16, 32, 64):
        params.check(size)


def test_an_unknown_mode_is_told_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match=r"mode is 'beam', allowed are static, dynamic, ") as caught:
        make_mode("beam", {})
    assert caught.value.param == "mode"


def test_a_knob_of_another_mode_is_told_what_this_one_has() -> None:
    with pytest.raises(
        InvalidRequest, match=r"'static' does not use threshold; its knobs are tokens_per_step"
    ) as caught:
        make_mode("static", {"threshold": 0.5})
    assert caught.value.param == "threshold"
