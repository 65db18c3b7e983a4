"""A tree of drafts by its definition: after each choice everything is looked at anew, with blocks as blocks."""

from typing import NamedTuple

from service.decode.block import MASKED, Block
from service.decode.canvas import DraftBudget
from tests.decode.oracle import Script


class Reading(NamedTuple):
    """The picks after a state, as a script has them for the state `of`."""

    script: Script
    of: Block
    sharpness: float


class ChosenState(NamedTuple):
    """A state, how likely decoding passes through it, and its reading."""

    state: Block
    likelihood: float
    reading: Reading

    def following(self) -> list[tuple[Block, float]]:
        """Its four likeliest successors, and how likely decoding passes through it to them."""
        reading = self.reading.script(self.reading.of)
        odds = {position: reading[position][1] / (1 - reading[position][1]) for position in self.state.masked}
        weights = {position: odd**self.reading.sharpness for position, odd in odds.items()}
        best = sorted(weights, key=lambda position: -weights[position])[:4]
        tokens = self.state.tokens
        return [
            (
                Block((*tokens[:position], reading[position][0], *tokens[position + 1 :])),
                self.likelihood * weights[position] / sum(weights.values()),
            )
            for position in best
        ]


def plain_tree(
    block: Block, before: tuple[Block, Script], mrp: Script, budget: DraftBudget
) -> list[tuple[Block, float]]:
    """The states in the order of their choice, each with its likelihood then. `before`: the last state that was read.

    Of the budget `states` and `mrp_steps` count.
    """
    chosen = list[ChosenState]()
    following: ChosenState | None = ChosenState(block, 1.0, Reading(before[1], before[0], 2.0))
    while following is not None and len(chosen) <= budget.states:
        fresh = Reading(mrp, following.state, 4.0) if len(chosen) < budget.mrp_steps else following.reading
        chosen.append(following._replace(reading=fresh))
        following = _likeliest(chosen)
    return [(node.state, node.likelihood) for node in chosen[1:]]


def _likeliest(chosen: list[ChosenState]) -> ChosenState | None:
    """The likeliest state after the chosen ones. Its reading comes from its likeliest path."""
    ways = dict[Block, list[tuple[float, Reading]]]()
    for node in chosen:
        for state, likelihood in node.following():
            ways.setdefault(state, []).append((likelihood, node.reading))
    done = {node.state for node in chosen}
    left = {
        state: sum(way for way, _ in to_it)
        for state, to_it in ways.items()
        if state not in done and MASKED in state.tokens
    }
    if not left:
        return None
    best = max(left, key=lambda state: left[state])
    return ChosenState(best, left[best], max(ways[best], key=lambda way: way[0])[1])
