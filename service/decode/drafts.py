"""Drafts for `speculative`: states that the decoding of a block is likely to pass through, to be verified.

`chain` is the published method: one draft after the other, each from MRP (MRP paper, speculative decoding). `tree`
chooses the likeliest states that are worth their cost. Without MRP it drafts from the backbone's last prediction only,
as FreeDave's self-drafting does.

Drafts do not change the output: they are only compared with the backbone's picks. `engine/drafting/costs.py` measures
the time of a tree. The search runs for every request in every step, so a `Block` is made only for a chosen state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping

from service.decode.block import MASKED, Block, Draft, Pick
from service.decode.canvas import Canvas, DraftBudget
from service.decode.policy import Prediction, Query, Refine
from service.decode.rules import LeftToRight, Rule, TopConfidence

#: The weight of a pick as the next one is odds ** sharpness. FRESH: MRP has read this very state. STALE: the prediction
#: is of an earlier state. Tuned on held-out problems of the demo that no reported number uses.
FRESH, STALE = 4.0, 2.0
#: the most picks that are tried after a state
_WIDTH = 4
#: Confidences are clipped to these bounds, since a sure model's are rounded to 0 and 1.
_LEAST, SURE = 1e-12, 1 - 1e-7
#: the likelihood that several picks at once are the rule's next picks, measured for `threshold` .5 and .9 and
#: `tokens_per_step` 2
_SEVERAL = 0.45
#: the rule whose picks have odds: one token a step
_ONE = TopConfidence(1)
#: the rule whose next position is certain
_NEXT = LeftToRight(1)
#: the steps of the rule that lead to drafts of `by_rule`. A draft's number has a bit for each step that it takes
NUM_STEPS = 3
#: The best drafts of `by_rule`, by how many they are. With one token a step the second step may come first. Measured on
#: the demo and on simulated networks.
_BRANCHES = (), (1,), (1, 3), (1, 2, 3), (1, 2, 3, 7), (1, 2, 3, 5, 7), (1, 2, 3, 4, 5, 7), (1, 2, 3, 4, 5, 6, 7)
_STRAIGHT = (), (1,), (1, 3), (1, 3, 7)

#: the drafts by their states, in the order of their numbers
Drafts = Mapping[Block, Draft]
Drafting = Generator[Query, tuple[Prediction, ...], Drafts]


def chain(canvas: Canvas, prediction: Prediction, steps: int, rule: Rule, *, first: bool) -> Drafting:
    """A chain of up to `steps` states, each with one more draft than its predecessor. Ends at a complete state.

    `prediction`: the prediction of the state before the canvas's. `first`: whether it is a block's first round, whose
    first draft is MRP's. Later rounds begin with the picks of `prediction`.
    """
    block = canvas.block
    drafts: dict[Block, Draft] = {}
    picks = () if first else canvas.choose(rule, prediction.restricted_to(block), block)
    while len(drafts) < steps and not block.complete:
        if not picks:
            (prediction,) = yield Refine(prediction, block, num_following=steps - len(drafts) - 1)
            if not (picks := canvas.choose(rule, prediction, block)):
                break  # the answer has ended
        block = canvas.after(block, picks)
        drafts[block], picks = Draft(len(drafts) + 1, picks), ()
    return drafts


def worth_drafting(rule: Rule, budget: DraftBudget) -> bool:
    """Whether any state can be worth its cost: a state of one token a step gains one token at most."""
    return budget.states > 0 and (budget.row < 1 or type(rule) is not TopConfidence or rule.count > 1)


def tree(canvas: Canvas, prediction: Prediction, rule: Rule, budget: DraftBudget) -> Drafting:
    """The likeliest states after the canvas's that the budget allows and that are worth their cost.

    `prediction`: the prediction of the state before. MRP reads the canvas's state and the first chosen states. The
    successors of other states come from the prediction of the state before. No returned state ends the answer.

    Example: the picks of the block have the weights a 0.6 and b 0.4. The states {a} and {b} have the likelihoods 0.6
    and 0.4. After {a} only b is left, and after {b} only a. So {a, b} is reached in both ways: likelihood 1.
    """
    if type(rule) is not TopConfidence or rule.count > 1:
        return _line(canvas, prediction, rule, budget)
    return _branches(canvas, prediction, budget)


def copied(canvas: Canvas, rule: Rule, budget: DraftBudget) -> Drafting:
    """The tree after a block's first state, which no forward has read: of tokens from the request's text."""
    prediction = canvas.lookup().prediction(canvas.block, budget.copied)
    if prediction is None:
        return {}
    return (yield from tree(canvas, prediction, rule, budget._replace(mrp_steps=0, copied=0)))


def numbers_by_rule(rule: Rule) -> tuple[tuple[int, ...], ...]:
    """The numbers of drafts for `by_rule`, by how many they are."""
    return _BRANCHES if rule == _ONE else _STRAIGHT


def by_rule(canvas: Canvas, prediction: Prediction, rule: Rule, numbers: Iterable[int]) -> Drafts:
    """The states after some of the next steps that the rule takes by `prediction`, which is of the state before.

    The device makes the same ones (`engine/forward/row_states.py`). `numbers`: the numbers of the drafts. No state
    ends the answer.
    """
    steps, state = list[tuple[Pick, ...]](), canvas.block
    for _ in range(NUM_STEPS):
        steps.append(canvas.choose(rule, prediction.restricted_to(state), state))
        state = state.reveal(steps[-1])
    drafts: dict[Block, Draft] = {}
    for number in numbers:
        taken = [picks for step, picks in enumerate(steps) if number >> step & 1]
        state = canvas.block.reveal([pick for picks in taken for pick in picks])
        if all(taken) and not canvas.ends(state):
            drafts[state] = Draft(len(drafts) + 1, taken[-1], device_number=number)
    return drafts


def _branches(canvas: Canvas, prediction: Prediction, budget: DraftBudget) -> Drafting:
    """The tree for the rule of one token a step. With a grammar there is another rule, so picks force nothing."""
    block, refined = canvas.block, min(budget.mrp_steps, budget.states)
    drafts: dict[Block, Draft] = {}
    if not worth_drafting(_ONE, budget) or block.tokens.count(MASKED) < 2:
        return drafts
    reads = _reads(canvas, budget)
    if budget.row > 0.5 and most_likely(reads(prediction, block).confidences, STALE) < budget.row:
        return drafts  # the usual case under full load, so it comes first
    node, search = Node(block, 1.0, 0, prediction), BestFirstSearch(budget.states, reads)
    if budget.row or not budget.mrp_steps:
        search.rank(node, STALE)
        likely = [pick for likelihood, pick in node.likely() if likelihood >= budget.row] if budget.row else []
        if budget.row and all(canvas.ends(block.reveal((pick,))) for pick in likely):
            return drafts
    for number in range(budget.states):
        if number < refined:
            (node.prediction,) = yield Refine(node.prediction, node.state, num_following=refined - number - 1)
            search.rank(node, FRESH)
        search.expand(node)
        following = search.choose(canvas.ends)
        if following is None or following.likelihood < budget.row:
            break
        node = following
        drafts[node.state] = Draft(number + 1, node.last, node.likelihood)
    return drafts


def _line(canvas: Canvas, prediction: Prediction, rule: Rule, budget: DraftBudget) -> Drafting:
    """The tree for any other rule: the states through which it continues by the latest predictions.

    A draft gains one step of plain decoding, of about the length of the step that leads to the draft. The line ends if
    the rule has no picks, if the next state is not worth its cost, or if the answer ends in it.
    """
    block, likelihood = canvas.block, 1.0
    drafts: dict[Block, Draft] = {}

    reads = _reads(canvas, budget)

    def following() -> tuple[Block, float, tuple[Pick, ...]] | None:
        """(next state, its likelihood, the picks that lead to it)."""
        if not (picks := canvas.choose(rule, reads(prediction, block), block)):
            return None
        factor = max(0.0, min(picks[0].confidence, SURE)) if rule == _NEXT else _SEVERAL  # never NaN
        state = canvas.after(block, picks)
        if likelihood * factor * len(picks) < budget.row or canvas.ends(state):
            return None
        return state, likelihood * factor, picks

    if not budget.states or (step := following()) is None:
        return drafts
    while step is not None and len(drafts) < budget.states:
        if len(drafts) < budget.mrp_steps:
            (prediction,) = yield Refine(prediction, block, num_following=budget.mrp_steps - len(drafts) - 1)
            if (step := following()) is None:
                break
        block, likelihood, picks = step
        drafts[block] = Draft(len(drafts) + 1, picks, likelihood * len(picks))
        step = following()
    return drafts


def _reads(canvas: Canvas, budget: DraftBudget) -> Callable[[Prediction, Block], Prediction]:
    """What is known of a state by the prediction of an earlier one, and by the request's text."""
    if not budget.copied:
        return Prediction.restricted_to
    lookup = canvas.lookup()
    return lambda prediction, state: lookup.merged(prediction.restricted_to(state), state, budget.copied)


# --- the search for a rule of one token a step -----------------------------------------------------


class Node:
    """A state from which the search continues.

    `likelihood`: the probability that decoding passes through the state. `prediction`: the prediction of the state or
    of an earlier one. `last`: the pick that leads to it on its likeliest path. `picks`: the likeliest picks of the
    prediction, in order.
    `bits[i]`: the bit of pick i. A state's `number` is the OR of its picks' bits. `weights[i]`: the weight of pick i, 0
    if the state has it. `unlisted`: the weight of all picks that are too unlikely to be listed.
    """

    __slots__ = ("bits", "last", "likelihood", "number", "picks", "prediction", "state", "unlisted", "weights")

    def __init__(self, state: Block, likelihood: float, number: int, prediction: Prediction) -> None:
        self.state, self.likelihood, self.number, self.prediction = state, likelihood, number, prediction
        self.last: tuple[Pick, ...] = ()
        self.picks: list[tuple[int, int, float]] = []
        self.bits: list[int] = []
        self.weights: list[float] = []
        self.unlisted = 0.0

    @property
    def total(self) -> float:
        """The weight of all remaining picks; 1 where it rounds to 0."""
        return sum(self.weights) + self.unlisted or 1.0

    def likely(self) -> list[tuple[float, Pick]]:
        """The likeliest next picks with their probabilities."""
        total = self.total
        return [(weight / total, Pick(*pick)) for weight, pick in zip(self.weights[:_WIDTH], self.picks, strict=False)]


class BestFirstSearch:
    """A search over the states of a block, the likeliest first. `states`: the most states that are chosen.

    `reads`: returns what is known of a state by an earlier prediction.

    Its frontier holds the states one pick after a chosen one. The likelihood of a state is the sum over all paths to
    it. Its next picks are the picks of its likeliest path.
    """

    def __init__(
        self, states: int, reads: Callable[[Prediction, Block], Prediction] = Prediction.restricted_to
    ) -> None:
        self._num_listed, self._reads = states + _WIDTH, reads
        self._likelihoods: dict[int, float] = {}
        self._paths: dict[int, tuple[float, Node, int]] = {}
        self._bits: dict[int, int] = {}

    def rank(self, node: Node, sharpness: float) -> None:
        """Ranks the next picks of a node by the confidences of its prediction."""
        bits, prediction = self._bits, self._reads(node.prediction, node.state)
        positions, tokens, confidences = prediction.positions, prediction.tokens, prediction.confidences
        order = sorted(range(len(positions)), key=confidences.__getitem__, reverse=True)
        weights = [
            (sure / (1.0 - sure) if _LEAST < sure < SURE else _clipped_odds(sure)) ** sharpness
            for sure in [confidences[index] for index in order]
        ]
        end = self._num_listed
        node.weights, node.unlisted = weights[:end], sum(weights[end:])
        node.picks = [(positions[index], tokens[index], confidences[index]) for index in order[:end]]
        node.bits = [bits.setdefault(token << 16 | position, 1 << len(bits)) for position, token, _ in node.picks]

    def expand(self, node: Node) -> None:
        """Adds the states after a chosen one to the frontier."""
        likelihoods, paths, before, bits, tried = self._likelihoods, self._paths, node.number, node.bits, 0
        share = node.likelihood / node.total
        for index, weight in enumerate(node.weights):
            if not weight:
                continue
            number, likelihood = before | bits[index], share * weight
            if number in likelihoods:
                likelihoods[number] += likelihood
                if likelihood > paths[number][0]:
                    paths[number] = likelihood, node, index
            elif number not in paths:  # else it is chosen
                likelihoods[number], paths[number] = likelihood, (likelihood, node, index)
            tried += 1
            if tried == _WIDTH:
                break

    def choose(self, ends: Callable[[Block], bool]) -> Node | None:
        """Removes the likeliest state that does not end the answer from the frontier. None if there is none."""
        likelihoods = self._likelihoods
        while likelihoods:
            number = max(likelihoods, key=likelihoods.__getitem__)
            _, before, index = self._paths[number]
            last = (Pick(*before.picks[index]),)
            node = Node(before.state.reveal(last), likelihoods.pop(number), number, before.prediction)
            if not ends(node.state):
                node.last, node.picks, node.bits = last, before.picks, before.bits
                node.weights, node.unlisted = before.weights.copy(), before.unlisted
                node.weights[index] = 0.0
                return node
        return None


def most_likely(confidences: Iterable[float], sharpness: float) -> float:
    """A bound above the likelihood of each pick, at least 0.5. The two surest picks decide it."""
    if len(ordered := sorted(confidences)) < 2:
        return 1.0
    *_, second, first = ordered
    if not _LEAST < second <= first < SURE:
        return 1.0
    ratio = second * (1.0 - first) / (first * (1.0 - second))
    return float(1.0 / (1.0 + ratio**sharpness))


def _clipped_odds(confidence: float) -> float:
    """The odds of a confidence that is out of bounds or NaN."""
    clipped = SURE if confidence >= SURE else _LEAST
    return clipped / (1.0 - clipped)
