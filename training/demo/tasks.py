"""Draws problems and their worked answers from the demo's grammar.

Every answer draws a new phrasing, and the rest of the answer must agree with it. A parallel decoder makes errors just
there. `service.demo.is_heldout` decides whether a problem may be used in training.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from service.demo import grammar, is_heldout

CODE_SHARE = 0.25
#: shares of stories with one, two and three events
STEP_SHARES = (0.3, 0.4, 0.3)
REUSE_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Example:
    """A problem and one of its right answers."""

    prompt: str
    answer: str


def draw(rng: random.Random, *, heldout: bool = False) -> Example:
    """One example from the training side of the split, or from the held-out side."""
    while True:
        example = draw_code(rng) if rng.random() < CODE_SHARE else draw_story(rng)
        if is_heldout(example.prompt) == heldout:
            return example


def draw_story(rng: random.Random) -> Example:
    """ "Tom has 5 apples, gets 3, loses 2." with its worked answer; every number is 0 to 9."""
    name, items, total = rng.choice(grammar.NAMES), rng.choice(grammar.ITEMS), rng.randint(1, 9)
    prompt = f"{name} has {total} {items}"
    lines: list[str] = []
    letters: list[str] = []
    for _ in range(rng.choices((1, 2, 3), STEP_SHARES)[0]):
        change = rng.choice([delta for delta in range(-9, 10) if delta and 0 <= total + delta <= 9])
        sign = "+" if change > 0 else "-"
        prompt += f", {grammar.VERBS[sign]} {abs(change)}"
        left = letters[-1] if letters and rng.random() < REUSE_SHARE else str(total)
        letters.append(_letter(rng, letters))
        total += change
        fields = {"v": letters[-1], "a": left, "S": sign, "b": abs(change), "r": total, "A": name, "it": items}
        lead = rng.choices(grammar.LEADS, grammar.LEAD_WEIGHTS)[0]
        lines.append(_fill(rng, grammar.with_lead(lead, rng.choice(grammar.STEPS)), fields))
    lines.append(_fill(rng, rng.choice(grammar.FINALS), {"r": total, "A": name, "it": items}))
    return Example(prompt + ".", " ".join(lines))


def draw_code(rng: random.Random) -> Example:
    """ "Write code: add 3, then times 2." with a one-line function."""
    first, second = rng.choices(list(grammar.OPERATIONS), k=2)
    j, k = rng.randint(1, 9), rng.randint(1, 9)
    letter = _letter(rng, [])
    fields = {
        "f": rng.choice(grammar.FUNCTIONS),
        "v": letter,
        "y": _letter(rng, [letter]),
        "p": grammar.OPERATIONS[first],
        "j": j,
        "q": grammar.OPERATIONS[second],
        "k": k,
    }
    answer = _fill(rng, rng.choice(grammar.CODES) + rng.choice(grammar.COMMENTS), fields)
    return Example(f"Write code: {first} {j}, then {second} {k}.", answer)


def _letter(rng: random.Random, used: list[str]) -> str:
    free = [pair for pair in zip(grammar.LETTERS, grammar.LETTER_WEIGHTS, strict=True) if pair[0] not in used]
    return rng.choices([letter for letter, _ in free], [weight for _, weight in free])[0]


def _fill(rng: random.Random, template: str, fields: dict[str, object]) -> str:
    opening, closing = rng.choice(grammar.BRACKETS)
    return template.format(**fields, o=opening, c=closing)
