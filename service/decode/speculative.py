"""`speculative`: drafts verified by the backbone; the output equals that of the verified rule, token for token.

In each round, drafts name states that the block may pass through (`drafting.py`). One forward reads the current state
and all drafted states. The rule is applied to the reading of the current state. If it leads to a drafted state, the
rule is applied to the reading of that state, and so on. Each reading is the same as in plain decoding, so every
forward yields at least one step of plain decoding. Source: MRP paper, speculative decoding, which verifies a chain
against `static`. Here any rule and any set of states is possible.

The first forward of a block reveals tokens at once. The published loop verifies that state twice.
"""

from collections.abc import Mapping

from service.decode.block import Block, Canvas, Pick, Step
from service.decode.draft_budget import DraftBudget
from service.decode.drafting import Draft, Drafting, Drafts, chain, tree
from service.decode.params import AUTO, Speculative
from service.decode.policy import Decoding, Evaluate, Reading
from service.decode.rules import Rule


def speculative(canvas: Canvas, params: Speculative) -> Decoding:
    """Decodes the canvas's block in as few forwards as the drafts allow."""
    rule = params.rule
    (reading,) = yield Evaluate((canvas.block,))
    canvas.reveal("denoise", rule(reading))
    while not canvas.block.complete:
        drafts = yield from _draft(canvas, reading, params, rule)
        states = (canvas.block, *(state for state in drafts if not canvas.ends(state)))
        readings = yield Evaluate(states)
        reading = _walk(canvas, dict(zip(states, readings, strict=True)), drafts, rule)


def _draft(canvas: Canvas, reading: Reading, params: Speculative, rule: Rule) -> Drafting:
    if params.mrp_steps == AUTO:
        budget = canvas.budget().at_most(params.max_drafts or len(canvas.block.tokens))
        return tree(canvas.block, reading, rule, budget, canvas.ends)
    if params.max_drafts is None:
        return chain(canvas.block, reading, params.mrp_steps, rule, first=len(canvas.steps) == 1)
    fixed = DraftBudget(0.0, params.max_drafts, params.mrp_steps)
    return tree(canvas.block, reading, rule, fixed, canvas.ends)


def _walk(canvas: Canvas, readings: Mapping[Block, Reading], drafts: Drafts, rule: Rule) -> Reading:
    """Applies the rule from state to state, up to the first state that was not read. Returns the last reading."""
    if not drafts:
        reading = readings[canvas.block]
        canvas.reveal("verify", rule(reading))
        return reading
    block, met, revealed = canvas.block, dict[Block, Draft](), list[Pick]()
    while True:
        reading = readings[block]
        picks = rule(reading)
        revealed += picks
        block = block.reveal(picks)
        if block in drafts:
            met[block] = Draft(picks)
        if block not in readings:
            drafted = _flat({**met, **{state: drafts[state] for state in drafts if state not in met}})
            promises = tuple(
                (draft.promise, len(met[state].picks) if state in met else 0) for state, draft in drafts.items()
            )
            canvas.record(Step("verify", tuple(revealed), (), drafted, len(_flat(met)), promises))
            return reading


def _flat(drafts: Drafts) -> tuple[Pick, ...]:
    return tuple(pick for draft in drafts.values() for pick in draft.picks)
