"""Rows and files as a calibration might have found them."""

from typing import Any

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.quality.calibration.pareto import assemble, is_lossless
from service.quality.calibration.records import Estimate, paired_difference, proportion
from service.quality.schema import Identity, Measured, Plan, PlanResult, QualityFile, SampledResult, Speed

PROMPTS = 1000
STATIC_RIGHT = 950
#: the measured loads, and the one at which most tests look
LOADS, CHOSEN_AT = (1, 16), 16

IDENTITY = Identity(block_size=8, mrp={"residual": True, "scale": 1.0}, weights="sha256:0")
MEASURED = Measured(
    at="2026-01-02", model="made-up", prompts=PROMPTS, prompts_sha256="0", scorer="exact", max_new_tokens=64,
    device="cpu", dtype="float32", threads=1, clock="cpu", concurrency=[1, 16], how="made up",
)  # fmt: skip


def row(mode: DecodingMode, rate: float, gained: int = 0, lost: int = 0, **changes: Any) -> PlanResult:
    """A plan that gives `rate` tokens a second and answers some prompts otherwise than static, which gives 1,000."""
    lossless, right = is_lossless(mode), STATIC_RIGHT + gained - lost
    away = Estimate(0.0, 0.0, 0.0) if lossless else paired_difference(gained, lost, PROMPTS)
    made = {
        "plan": Plan.from_mode(mode), "lossless": lossless, "prompts": PROMPTS, "right": right, "gained": gained,
        "lost": lost, "identical": PROMPTS - gained - lost, "tokens_per_forward": rate / 1000,
        "speed": [speed(1, rate / 3), speed(16, rate)],
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


def speed(concurrency: int, rate: float, noise: float = 0.01) -> Speed:
    """Known to within `noise`."""
    ratio = rate / 1000
    return Speed(
        concurrency=concurrency, tokens_per_second=rate, tokens_per_second_wall=rate, speedup=ratio,
        speedup_low=ratio * (1 - noise), speedup_high=ratio * (1 + noise),
    )  # fmt: skip


#: static, what is as good, a bit worse, worse, much worse
ROWS = [
    row(Static(), 1000),
    row(Speculative(2), 900, tokens_per_forward=1.8),
    row(Dynamic(0.9), 1800, gained=1, lost=2),
    row(Dynamic(0.5), 2600, lost=40),
    row(Dynamic(0.3), 3000, lost=200),
    row(Remask(0.5), 2000, lost=9),
    row(Direct(2), 1500, lost=30),
]


#: a lone request is fastest with drafts, a full machine with a rule; of two rules another one each time
BY_LOAD = [
    row(Static(), 1000, speed=[speed(1, 100), speed(16, 1000)]),
    row(Speculative(2), 1, speed=[speed(1, 200), speed(16, 900)]),
    row(Dynamic(0.9), 1, lost=5, speed=[speed(1, 300), speed(16, 1100)]),
    row(Remask(0.5), 1, lost=5, speed=[speed(1, 150), speed(16, 1500)]),
    row(Dynamic(0.3), 1, lost=200, speed=[speed(1, 900), speed(16, 9000)]),
]


def made_up_file(**changes: Any) -> QualityFile:
    return assemble(IDENTITY, MEASURED, ROWS).model_copy(update=changes)
