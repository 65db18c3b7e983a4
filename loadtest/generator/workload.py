"""The requests: prompts, lengths and modes by distribution, a function of seed and number.

Request `n` does not depend on earlier requests, so concurrency does not change the requests. Bodies are those of
POST /generate. `for_openai` turns one into a body of OpenAI's routes.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from service.quality.schema import QUALITIES

Json = dict[str, Any]

#: stands for requests without a mode, which get the server's default
DEFAULT_MODE = "default"
#: the demo's modes in equal shares
ALL_MODES = "static,dynamic@threshold=0.7,direct@mrp_steps=1,speculative@mrp_steps=2,remask@threshold=0.5"


@dataclass(frozen=True)
class Lengths:
    kind: Literal["fixed", "uniform", "lognormal"]
    first: float
    second: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """`fixed:64`, `uniform:16-128` or `lognormal:48-0.5` (median, sigma)."""
        kind, _, numbers = text.partition(":")
        first, _, second = numbers.partition("-")
        try:
            lengths = cls(kind, float(first), float(second or 0))  # type: ignore[arg-type] - checked below
        except ValueError:
            lengths = None
        if lengths is None or kind not in {"fixed", "uniform", "lognormal"} or lengths.first < 1:
            raise ValueError(f"lengths {text!r}; allowed: fixed:N, uniform:FROM-TO, lognormal:MEDIAN-SIGMA")
        return lengths

    def draw(self, draw: random.Random) -> int:
        """Draws one length, at least 1."""
        if self.kind == "fixed":
            return int(self.first)
        if self.kind == "uniform":
            return draw.randint(int(self.first), max(int(self.first), int(self.second)))
        return max(1, round(self.first * draw.lognormvariate(0.0, self.second)))


@dataclass(frozen=True)
class Plan:
    """A mode with its knobs, and its weight among the modes."""

    label: str
    knobs: tuple[tuple[str, Any], ...]
    weight: float


def plans(text: str) -> tuple[Plan, ...]:
    """Parses `static:1,speculative@mrp_steps=2:3,fast:1`: modes, knobs after an @ (joined by +), weights after a colon.

    A quality may be given instead of a mode and its knobs.
    """
    return tuple(_plan(part.strip()) for part in text.split(","))


def _plan(text: str) -> Plan:
    head, _, weight = text.partition(":")
    mode, _, knobs = head.partition("@")
    try:
        words = (knob.split("=") for knob in knobs.split("+") if knob)
        pairs = [(name, value if value.isalpha() else json.loads(value)) for name, value in words]
        fields = [] if mode == DEFAULT_MODE else [("quality" if mode in QUALITIES else "mode", mode)]
        plan = Plan(head, (*fields, *pairs), float(weight or 1))
    except ValueError:
        plan = None
    if plan is None or not mode or plan.weight <= 0:
        raise ValueError(f"mode {text!r}; allowed: MODE[@KNOB=VALUE[+KNOB=VALUE]][:WEIGHT], weights above 0")
    return plan


@dataclass(frozen=True)
class PlannedRequest:
    label: str
    body: Json


@dataclass(frozen=True)
class Workload:
    prompts: tuple[Json, ...]
    plans: tuple[Plan, ...]
    lengths: Lengths
    temperature: float = 0.0
    exact: bool = False
    seed: int = 17

    def request(self, number: int, source: str = "0") -> PlannedRequest:
        draw = random.Random(f"{self.seed}/{source}/{number}")
        plan = draw.choices(self.plans, [plan.weight for plan in self.plans])[0]
        body = {
            **draw.choice(self.prompts),
            "max_new_tokens": self.lengths.draw(draw),
            "temperature": self.temperature,
            "seed": draw.randrange(2**40),
            **dict(plan.knobs),
        }
        return PlannedRequest(plan.label, body | {"ignore_eos": True} if self.exact else body)


def for_openai(body: Json, model: str, *, chat: bool) -> Json:
    """The same request for OpenAI's routes. A completion has the last message as prompt."""
    rest = {name: value for name, value in body.items() if name not in {"messages", "prompt", "max_new_tokens"}}
    messages = body["messages"] if "messages" in body else _chat(body["prompt"])["messages"]
    content = {"messages": messages} if chat else {"prompt": messages[-1]["content"]}
    return {"model": model, **content, **rest, "max_tokens": body["max_new_tokens"]}


def heldout_prompts() -> tuple[Json, ...]:
    from service.demo import heldout_problems

    return tuple(_chat(problem.prompt) for problem in heldout_problems())


def read_prompts(path: Path) -> tuple[Json, ...]:
    """Reads JSON lines, each with `messages` or `prompt`. Other fields are ignored."""
    values = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = tuple({name: value[name] for name in ("messages", "prompt") if name in value} for value in values)
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) != 1:
            raise ValueError(f"{path}, line {number}: {sorted(prompt)} are given, allowed is one: messages or prompt")
    return prompts


def _chat(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}]}
