"""Draws problems and their answers in the language of the fourth edition (`service/demo/edition4`).

Every answer draws a new phrasing, and the rest of the answer must agree with it, also what stands before. Which
problems are held out is decided as for the other editions.
"""

from __future__ import annotations

import random

from service.demo import grammar as words
from service.demo import is_heldout
from service.demo.edition4 import grammar
from service.demo.edition4.problems import Code, Contest, Story, parse
from training.demo.tasks import STEP_SHARES, Example

#: shares of stories, forms, contests and code
SHARES = (0.5, 0.1, 0.25, 0.15)
REUSE_SHARE, DOUBLE_SHARE, JOINED_SHARE, PLAN_SHARE, COMMENT_SHARE = 0.4, 0.4, 0.2, 0.3, 0.5
_THREE_TERMS = 0.5


def draw(rng: random.Random, *, heldout: bool = False) -> Example:
    """One example from the training side of the split, or from the held-out side."""
    kinds = (_story_prompt, _form_prompt, _contest_prompt, _code_prompt)
    while True:
        prompt = rng.choices(kinds, SHARES)[0](rng)
        if is_heldout(prompt) == heldout:
            return Example(prompt, answer(rng, prompt))


def answer(rng: random.Random, prompt: str) -> str:
    """One of the right answers to a problem. ValueError for a text that is not a problem."""
    task = parse(prompt)
    if isinstance(task, Contest):
        return _contest(rng, task)
    if isinstance(task, Code):
        return _code(rng, task)
    return _form(rng, task) if task.form else _story(rng, task)


def _story_prompt(rng: random.Random) -> str:
    total = rng.randint(1, 9)
    prompt = f"{rng.choice(words.NAMES)} has {total} {rng.choice(words.ITEMS)}"
    for _ in range(rng.choices((1, 2, 3), STEP_SHARES)[0]):
        change = _change(rng, total)
        total += change
        prompt += f", {words.VERBS['+' if change > 0 else '-']} {abs(change)}"
    return prompt + "."


def _form_prompt(rng: random.Random) -> str:
    return f"Form: {_story_prompt(rng)}"


def _contest_prompt(rng: random.Random) -> str:
    name, other = rng.sample(words.NAMES, 2)
    return f"Who has {rng.choice(('more', 'fewer'))}: {name} with {_sum(rng)} or {other} with {_sum(rng)}?"


def _code_prompt(rng: random.Random) -> str:
    return f"Write code in {rng.choice(words.LETTERS)}: {rng.randint(0, 9)} to {rng.randint(0, 9)}."


def _sum(rng: random.Random) -> str:
    total = rng.randint(0, 9)
    text = str(total)
    for _ in range(1 + (rng.random() < _THREE_TERMS)):
        change = _change(rng, total)
        total += change
        text += f" {'+' if change > 0 else '-'} {abs(change)}"
    return text


def _change(rng: random.Random, total: int) -> int:
    """A change by at most nine to a number of one digit."""
    return rng.choice([change for change in range(-9, 10) if change and 0 <= total + change <= 9])


def _story(rng: random.Random, story: Story) -> str:
    events, totals, at = story.events, [str(total) for total in story.totals], 0
    lines, text, letters, joined = 0, "", list[str](), False
    while at < len(events):
        double = at + 1 < len(events) and rng.random() < DOUBLE_SHARE
        left = letters[-1] if letters and rng.random() < REUSE_SHARE else totals[at]
        letters.append(_letter(rng, letters))
        fields = {"v": letters[-1], "a": left, "S": events[at][0], "b": events[at][1], "r": totals[at + 1 + double]}
        if double:
            fields |= {"m": totals[at + 1], "T": events[at + 1][0], "d": events[at + 1][1]}
        line = rng.choice(grammar.DOUBLE_LINES if double else grammar.LINES)
        if not joined:
            line = words.with_lead(rng.choices(words.LEADS, words.LEAD_WEIGHTS)[0], line)
        at, lines = at + 1 + double, lines + 1
        joined = at < len(events) and rng.random() < JOINED_SHARE
        text += _fill(rng, line + grammar.ENDS[joined], fields | {"A": story.name, "it": story.items})
    plan = rng.choice(grammar.PLANS[1:]) if rng.random() < PLAN_SHARE else ""
    final = _fill(rng, rng.choice(words.FINALS), {"r": totals[-1], "A": story.name, "it": story.items})
    return plan.format(n=lines) + text + final


def _form(rng: random.Random, story: Story) -> str:
    sign, number = story.events[-1]
    names, things, *rest = grammar.FIELDS
    fields = [names, things, rng.choice(rest)]
    rng.shuffle(fields)
    text = rng.choice(grammar.HEADERS) + rng.choice(grammar.SEPARATORS).join(fields) + "."
    *_, before, result = story.totals
    facts = {"r": result, "a": before, "S": sign, "b": number, "A": story.name, "it": story.items}
    return _fill(rng, text, facts | {"key": fields[0].split()[0]})


def _contest(rng: random.Random, contest: Contest) -> str:
    names = contest.ranked
    high, low = (contest.results[name] for name in names)
    if high == low:
        rng.shuffle(names)
    small, large = sorted((high, low))
    facts = {"W": names[0], "L": names[1], "h": high, "l": low, "e": large - small, "large": large, "small": small}
    facts["R"] = ">" if contest.asked == "more" else "<"
    text = rng.choice(grammar.TIES) if high == low else rng.choice(grammar.VERDICTS) + rng.choice(grammar.GAPS)
    return _fill(rng, text, facts)


def _code(rng: random.Random, task: Code) -> str:
    body, k = rng.choice(_bodies(task))
    move = grammar.MOVES[(task.t > task.j) - (task.t < task.j)]
    template = rng.choice(grammar.FUNCTIONS)
    if rng.random() < COMMENT_SHARE:
        template += rng.choice(grammar.COMMENTS[1:])
    fields = {"v": task.v, "y": _letter(rng, [task.v]), "k": k, "j": task.j, "t": task.t}
    written = {"body": body.format(**fields), "sum": body.format(**(fields | {"v": task.j}))}
    return template.format(f=rng.choice((*grammar.BODIES[body], move)), **fields, **written)


def _bodies(task: Code) -> list[tuple[str, int]]:
    """Every body that makes `t` of `j`, with its digit."""
    j, t = task.j, task.t
    digits = {"{v} + {k}": t - j, "{k} + {v}": t - j, "{v} - {k}": j - t, "{k} - {v}": t + j}
    right = [(body, k) for body, k in digits.items() if 0 <= k <= 9]
    if j and t % j == 0:
        right += [("{v} * {k}", t // j), ("{k} * {v}", t // j)]
    return right


def _letter(rng: random.Random, used: list[str]) -> str:
    free = [pair for pair in zip(words.LETTERS, words.LETTER_WEIGHTS, strict=True) if pair[0] not in used]
    return rng.choices([letter for letter, _ in free], [weight for _, weight in free])[0]


def _fill(rng: random.Random, template: str, fields: dict[str, object]) -> str:
    opening, closing = rng.choice(words.BRACKETS)
    return template.format(**fields, o=opening, c=closing)
