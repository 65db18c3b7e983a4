"""Valid requests at the edges of the allowed ranges: every knob at its limits, near them, and at absurd values.

`drawn_knobs` and `drawn_sampling` name fields as POST /generate does, so that engines, routes and clients are tested
with the same draws. Every draw is allowed by the documented ranges for the checkpoint's block size.
"""

import math
import random
from typing import Any

from service.engine.request import MAX_SEED

#: the least number above 0 that a float can be, and the greatest below 1
TINY, ALMOST_ONE = 5e-324, math.nextafter(1.0, 0.0)

TEMPERATURES = (
    0, 0.0, -0.0, TINY, 1e-300, 1e-45, 1e-12, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 0.7,
    ALMOST_ONE, 1, 1.0, 1.2, 2, 100, 100.0,
)  # fmt: skip
TOP_P = (TINY, 1e-300, 1e-12, 1e-7, 0.1, 0.5, 0.9, ALMOST_ONE, 1, 1.0)
TOP_K = (0, 1, 2, 5, 31, 32, 33, 511, 512, 513, 2**31, 2**63 - 1, 2**63, 2**64, 10**30)
SEEDS = (0, 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1, MAX_SEED - 1, MAX_SEED)
THRESHOLDS = (TINY, 1e-300, 1e-7, 0.05, 0.5, 0.9, ALMOST_ONE, 1, 1.0)
BOUNDS = (0, 0.0, -0.0, TINY, 1e-300, 1e-7, 0.1, 0.5, 3.0, 1e3, 1e300, 1.7976931348623157e308)
#: knobs of the modes that are nothing but a rule
RULES = {
    "static": ("tokens_per_step",),
    "dynamic": ("threshold",),
    "sequential": ("tokens_per_step", "entropy_bound"),
    "entropy": ("entropy_bound",),
}


def drawn_knobs(rng: random.Random, block_size: int) -> dict[str, Any]:
    """`mode` and some of its knobs, of any mode."""
    mode = rng.choice([*RULES, "direct", "speculative", "speculative", "speculative", "remask"])
    if mode in RULES:
        return {"mode": mode, **_rule_knobs(rng, mode, block_size)}
    if mode == "direct":
        return {"mode": mode, **_some(rng, {"mrp_steps": _count(rng, block_size)})}
    if mode == "remask":
        return {"mode": mode, **_some(rng, {"threshold": rng.choice(THRESHOLDS)})}
    return {"mode": mode, **_drafting(rng, block_size), **_verified(rng, block_size)}


def drawn_margin(rng: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    """Some `margin` for fields with which it is allowed on every server."""
    named = fields["mode"] == "speculative" and fields.get("mrp_steps", "auto") != "auto"
    whole = fields.get("top_p", 1) >= 1 and not fields.get("top_k", 0) and not fields.get("min_p", 0)
    return {"margin": rng.choice(THRESHOLDS)} if named and whole and rng.random() < 0.5 else {}


def drawn_sampling(rng: random.Random) -> dict[str, Any]:
    """Some of `temperature`, `top_p`, `top_k`, `min_p` and the penalties, and a seed."""
    fields = {
        "temperature": rng.choice(TEMPERATURES),
        "top_p": rng.choice(TOP_P),
        "top_k": rng.choice(TOP_K),
        "min_p": rng.choice([0, 0, TINY, 0.1, ALMOST_ONE, 1]),
    }
    more = drawn_penalties(rng) if rng.random() < 0.4 else {}
    return {**_some(rng, fields), **more, "seed": rng.choice([*SEEDS, rng.randrange(MAX_SEED)])}


def drawn_penalties(rng: random.Random) -> dict[str, Any]:
    """Some of the parameters that depend on the tokens of the sequence."""
    fields = {
        "repetition_penalty": rng.choice([0.01, ALMOST_ONE, 1, 1.2, 100]),
        "frequency_penalty": rng.choice([-2, -0.0, TINY, 0.5, 2]),
        "presence_penalty": rng.choice([-2.0, 1e-300, 0.5, 2]),
        "logit_bias": {
            rng.randrange(60): rng.choice([-100, -0.0, TINY, 3.5, 100]) for _ in range(rng.choice([0, 1, 9]))
        },
        "min_tokens": rng.choice([0, 1, 7]),
    }
    return _some(rng, fields)


def drawn_prompt(rng: random.Random, allowed: list[int], longest: int, block_size: int) -> list[int]:
    """Token ids, 1 to `longest`: lengths around whole blocks, one token over and over, beginnings that many share."""
    lengths = [1, block_size - 1, block_size, block_size + 1, 3 * block_size, longest - 1, longest]
    length = min(longest, max(1, rng.choice([*lengths, rng.randint(1, longest)])))
    kind = rng.random()
    if kind < 0.2:
        return [rng.choice(allowed)] * length
    if kind < 0.5:
        return [allowed[index % len(allowed)] for index in range(length)]
    return rng.choices(allowed, k=length)


def _drafting(rng: random.Random, block_size: int) -> dict[str, Any]:
    tree = rng.choice([None, _count(rng, block_size)])
    steps = rng.choice(["auto", "auto", 0 if tree else 1, _count(rng, block_size), None])
    return {name: value for name, value in {"mrp_steps": steps, "max_drafts": tree}.items() if value is not None}


def _verified(rng: random.Random, block_size: int) -> dict[str, Any]:
    verify = rng.choice([None, *RULES])
    if verify is None:
        return rng.choice([{}, {"threshold": rng.choice(THRESHOLDS)}, {"tokens_per_step": _count(rng, block_size)}])
    return {"verify": verify, **_rule_knobs(rng, verify, block_size)}


def _rule_knobs(rng: random.Random, rule: str, block_size: int) -> dict[str, Any]:
    values = {
        "tokens_per_step": _count(rng, block_size),
        "threshold": rng.choice(THRESHOLDS),
        "entropy_bound": rng.choice(BOUNDS),
    }
    return _some(rng, {name: values[name] for name in RULES[rule]})


def _count(rng: random.Random, block_size: int) -> int:
    return rng.choice([1, min(2, block_size), block_size, rng.randint(1, block_size)])


def _some(rng: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if rng.random() < 0.8}
