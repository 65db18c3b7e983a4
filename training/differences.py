"""The differences of two trainings as options of `train-mrp`, each with its earlier and its current value.

Configurations are compared in their stored form (`TrainingConfig.what_matters`). Users know only the options.
"""

from collections.abc import Mapping
from typing import Any

#: name of a value in a stored configuration -> option of the program
NAMES: Mapping[str, str] = {
    "recipe": "--recipe",
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
    "budget.tokens": "--batch-tokens",
    "budget.batches": "--accumulate times --workers",
    "budget.seed": "--seed",
    "budget.fp32": "--fp32",
    "budget.clip": "--clip",
    "module.layers": "--layers",
    "module.direct": "--direct",
}

#: values that only a recipe sets, the demo's included
_OF_RECIPE = {
    "objective.inverse_rate",
    "objective.passes",
    "schedule.flat",
    "schedule.floor",
    "schedule.cosine",
    "budget.matrices",
}


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """All differences, such as `--steps was 12, is 99`. Empty if the configurations are equal."""
    was, is_ = as_options(earlier), as_options(now)
    differ = [key for key in {**was, **is_} if was.get(key) != is_.get(key)]
    if not differ and earlier != now:  # another version of the program made other phases of the same options
        return ["another version of the program began it"]
    return sorted(f"{NAMES.get(key, key)} was {_as_text(was.get(key))}, is {_as_text(is_.get(key))}" for key in differ)


def as_options(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The stored values as options. Some stored values hold several options, or the opposite of an option.

    `inverse_rate` tells the recipe. The other values without an option of their own follow from it.
    """
    values = {name: value for name, value in plan.items() if name not in _OF_RECIPE}
    values["recipe"] = "published" if plan.get("objective.inverse_rate") else "default"
    phases = values.pop("objective.phases", None)
    if phases:
        values |= {f"objective.{name}": weight for name, weight in phases[-1]["weights"].items()}
        values["objective.unroll"] = phases[-1]["applications"]
    for stored, opposite in (("budget.bf16", "budget.fp32"), ("module.residual", "module.direct")):
        if stored in values:
            values[opposite] = not values.pop(stored)
    return values


def _as_text(value: object) -> str:
    words = {None: "not given", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
