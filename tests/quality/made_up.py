"""Rows and files as a calibration might have found them."""

from typing import Any

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.quality.calibration.pareto import assemble, is_lossless
from service.quality.calibration.records import Estimate, paired_difference, proportion
from service.quality.schema import Identity, Measured, Plan, PlanResult, QualityFile, SampledResult

PROMPTS = 1000
STATIC_RIGHT = 950

IDENTITY = Identity(block_size=8, mrp={"residual": True, "scale": 1.0}, weights="sha256:0")
MEASURED = Measured(
    at="2026-01-02", model="made-up", prompts=PROMPTS, prompts_sha256="0", scorer="exact", max_new_tokens=64,
    device="cpu", dtype="float32", how="made up",
)  # fmt: skip


def row(mode: DecodingMode, tokens_per_forward: float, gained: int = 0, lost: int = 0, **changes: Any) -> PlanResult:
    """A plan that answers some prompts otherwise than static."""
    lossless, right = is_lossless(mode), STATIC_RIGHT + gained - lost
    away = Estimate(0.0, 0.0, 0.0) if lossless else paired_difference(gained, lost, PROMPTS)
    made = {
        "plan": Plan.from_mode(mode), "lossless": lossless, "prompts": PROMPTS, "right": right, "gained": gained,
        "lost": lost, "identical": PROMPTS - gained - lost, "tokens_per_forward": tokens_per_forward,
    }  # fmt: skip
    return PlanResult(
        **{**made, **proportion(right, PROMPTS).fields("accuracy"), **away.fields("difference"), **changes}
    )


def at_temperature(temperature: float, gained: int = 0, lost: int = 0) -> SampledResult:
    """The result of a plan that answers some prompts otherwise than static at a temperature."""
    return SampledResult(
        temperature=temperature, prompts=PROMPTS, right=STATIC_RIGHT + gained - lost, gained=gained, lost=lost,
        **paired_difference(gained, lost, PROMPTS).fields("difference"),
    )  # fmt: skip


#: static, what is as good, a bit worse, worse, much worse
ROWS = [
    row(Static(), 1.0),
    row(Speculative(), 1.1),
    row(Dynamic(0.9), 1.8, gained=1, lost=2),
    row(Dynamic(0.5), 2.6, lost=30),
    row(Dynamic(0.3), 3.0, lost=200),
    row(Remask(0.5), 2.0, lost=5),
    row(Direct(2), 1.5, lost=30),
]


def made_up_file(**changes: Any) -> QualityFile:
    return assemble(IDENTITY, MEASURED, ROWS).model_copy(update=changes)
