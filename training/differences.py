"""How two trainings differ, in the words of `train-mrp`: an option with its value then and now.

A plan is compared as it is kept (`TrainingConfig.what_matters`); whoever reads of a difference knows the options alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: what a plan calls it -> what the program calls it
NAMES: Mapping[str, str] = {
    "source.backbone": "--backbone",
    "source.data": "--data",
    "source.lines": "lines of --data",
    "source.block_size": "--block-size",
    "source.max_length": "--max-length",
    "source.window": "--window",
    "source.heldout": "--heldout",
    "objective.unroll": "--unroll",
    "objective.next_pick": "--next-pick",
    "objective.order": "--order",
    "objective.revision": "--revision",
    "objective.trajectories": "--trajectories",
    "objective.copies": "--copies",
    "objective.reveals": "--reveals",
    "schedule.rate": "--lr",
    "schedule.warmup": "--warmup",
    "budget.steps": "--steps",
    "budget.rows": "--batch",
    "budget.batches": "--accumulate times --workers",
    "budget.seed": "--seed",
    "budget.fp32": "--fp32",
    "budget.clip": "--clip",
    "module.layers": "--layers",
    "module.direct": "--direct",
}


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Everything that differs, such as `--steps was 12, is 99`; nothing where the plans are the same."""
    was, is_ = as_options(earlier), as_options(now)
    differ = [key for key in {**was, **is_} if was.get(key) != is_.get(key)]
    if not differ and earlier != now:  # the same options, of which another version of the program made other phases
        return ["another version of the program began it"]
    return sorted(f"{NAMES.get(key, key)} was {_said(was.get(key))}, is {_said(is_.get(key))}" for key in differ)


def as_options(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan with a value for every option, where it keeps several in one value or the opposite of one."""
    values = dict(plan)
    phases = values.pop("objective.phases", None)
    if phases:
        values |= {f"objective.{name}": weight for name, weight in phases[-1]["weights"].items()}
        values["objective.unroll"] = phases[-1]["applications"]
    for kept, opposite in (("budget.bf16", "budget.fp32"), ("module.residual", "module.direct")):
        if kept in values:
            values[opposite] = not values.pop(kept)
    return values


def _said(value: object) -> str:
    words = {None: "not given", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
