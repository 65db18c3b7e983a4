"""`speculative`: drafts verified by the backbone; the output equals the verified rule's output, token for token.

One forward reads the current state and all drafted states (`drafts.py`). The rule steps from state to state while each
has a prediction, so every forward yields at least one step of plain decoding. Source: MRP paper, speculative decoding,
which verifies a chain against `static`, and the first state of a block twice.

With a `margin` a drafted step that the backbone finds nearly as good as the rule's step is accepted, too. Then drafts
change the output. Source: MARS (arXiv 2601.15498, section 3), and `evaluate_posterior` of its code: where the target's
second token is nearly as good as its first, a draft may be either of them. Elsewhere it must be the target's choice.
The paper compares raw logits, whose ratio changes if a constant is added to all of them. Here probabilities are
compared. In the paper the next position is fixed. Where the rule chooses positions, they have a margin, too: this part
is our own.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

from msgspec.structs import force_setattr

from service.decode.block import Block, Pick, Step
from service.decode.canvas import Canvas, DraftBudget
from service.decode.drafts import Drafting, Drafts, by_rule, chain, copied, tree, worth_drafting
from service.decode.knobs import AUTO, ENTROPY_BOUND, THRESHOLD, TOKENS_PER_STEP, Knob, knobs_in
from service.decode.mode import DecodingMode, Pace, RuleMode
from service.decode.modes.plain_modes import Dynamic, Entropy, Sequential, Static
from service.decode.policy import Decoding, Evaluate, Prediction, Query
from service.decode.rules import Rule
from service.errors import InvalidRequest

#: the modes whose output can be verified, by name
VERIFIED: Mapping[str, type[RuleMode]] = {mode.name: mode for mode in (Static, Dynamic, Sequential, Entropy)}

#: the top tokens of each position that a margin compares
_TOP_LOGPROBS = 2

#: the picks at a state, by its prediction
_Choose = Callable[[Prediction, Block], tuple[Pick, ...]]

_MRP_STEPS = Knob(
    int,
    "direct: MRP picks per backbone forward, default: the checkpoint's; speculative: MRP forwards for drafts, "
    "0: none, auto (default): the engine chooses by the current load",
    minimum=0,
    in_block=True,
    auto=True,
)
_MAX_DRAFTS = Knob(
    int,
    "most states of a tree verified per forward; default: the engine's choice (auto), or a chain of mrp_steps",
    minimum=1,
    in_block=True,
)
_VERIFY = Knob(
    str,
    "mode whose output is reproduced; default: dynamic if a threshold is given, else static",
    choices=tuple(VERIFIED),
)
_MARGIN = Knob(
    float,
    "accepts drafts that are nearly as likely as the verified mode's own token: more than this share of its "
    "probability; lossy; default: none, which is lossless",
    above=0,
    maximum=1,
)


_PROMPT_LOOKUP = Knob(
    int,
    "most tokens of a draft that are copied from the prompt and the answer so far, from where the last tokens occurred "
    "before; 0: none; default: with mrp_steps auto any number, else 0",
    minimum=0,
    in_block=True,
)


class Speculative(DecodingMode, frozen=True):
    """Drafts, verified by one backbone forward. Without a `margin` the output is that of the mode `verify` names.

    With `mrp_steps` "auto" the engine chooses their number and a tree of the states that are worth their cost at the
    current load, at most `max_drafts`, perhaps none. A number: the MRP forwards for a tree of `max_drafts` states, or
    without `max_drafts` for a chain. 0: the backbone's last logits draft, which needs no MRP.
    """

    name: ClassVar[str] = "speculative"
    mrp_steps: Annotated[int | Literal["auto"], _MRP_STEPS] = AUTO
    max_drafts: Annotated[int | None, _MAX_DRAFTS] = None
    tokens_per_step: Annotated[int | None, TOKENS_PER_STEP] = None
    threshold: Annotated[float | None, THRESHOLD] = None
    entropy_bound: Annotated[float | None, ENTROPY_BOUND] = None
    verify: Annotated[str | None, _VERIFY] = None
    margin: Annotated[float | None, _MARGIN] = None
    prompt_lookup_num_tokens: Annotated[int | None, _PROMPT_LOOKUP] = None

    def __post_init__(self) -> None:
        """Sets `verify` if it is not the default, so that the knobs shown to users are those that run."""
        if self.verify is None and self.threshold is not None:
            force_setattr(self, "verify", Dynamic.name)

    @property
    def needs_mrp(self) -> bool:
        """Whether MRP always makes the drafts."""
        return isinstance(self.mrp_steps, int) and self.mrp_steps > 0

    @property
    def drafts_decide(self) -> bool:
        return self.margin is not None

    @property
    def rule(self) -> Rule:
        return _rule(self)

    @property
    def pace(self) -> Pace | None:
        return self.plain.pace if self.mrp_steps == AUTO else None

    @property
    def plain(self) -> RuleMode:
        """The mode against which drafts are verified. InvalidRequest if that mode lacks one of the set knobs."""
        name = self.verify or Static.name
        if name not in VERIFIED:
            raise InvalidRequest(f"verify is {name!r}, allowed are {', '.join(VERIFIED)}", param="verify")
        used = knobs_in(VERIFIED[name])
        names = ("tokens_per_step", "threshold", "entropy_bound")
        knobs = {knob: value for knob in names if (value := getattr(self, knob)) is not None}
        for knob, value in knobs.items():
            if knob not in used:
                raise InvalidRequest(
                    f"{knob} is {value}, drafts are verified against {name}, whose knobs are {', '.join(used)}",
                    param=knob,
                )
        return VERIFIED[name](**knobs)

    def check(self, block_size: int) -> None:
        self.plain.check(block_size)
        DecodingMode.check(self, block_size)
        if self.mrp_steps == 0 and self.max_drafts is None:
            raise InvalidRequest(
                "mrp_steps is 0, which needs max_drafts: without MRP drafts are a tree", param="mrp_steps"
            )
        if self.prompt_lookup_num_tokens and self.mrp_steps != AUTO and self.max_drafts is None:
            raise InvalidRequest(
                f"prompt_lookup_num_tokens is {self.prompt_lookup_num_tokens}, which needs max_drafts: drafts with "
                "copied tokens are a tree",
                param="prompt_lookup_num_tokens",
            )

    def decode(self, canvas: Canvas) -> Decoding:
        rule = canvas.rule(self.rule)
        if canvas.block.complete:
            return
        budget, first = self.budget(canvas), True
        refined = self._num_refined(rule, budget, first=True)
        if drafts := canvas.carried or (yield from self._copied(canvas, rule, budget)):
            prediction = yield from self._verify(canvas, rule, drafts, refined)
        else:
            (prediction,) = yield Evaluate((canvas.block,), num_following=refined)
            canvas.reveal("denoise", canvas.choose(rule, prediction, canvas.block))
        while not canvas.block.complete:
            budget = self.budget(canvas)
            drafting: Drafting | Drafts
            if self.drafts_chain:
                drafting = chain(canvas, prediction, budget.mrp_steps, rule, first=first)
            else:
                drafting = _draft_tree(canvas, prediction, rule, budget)
            drafts = (yield from drafting) if isinstance(drafting, Generator) else drafting
            refined, first = self._num_refined(rule, budget), False
            if not drafts:  # most steps of `auto` under full load
                (prediction,) = yield Evaluate((canvas.block,), num_following=refined)
                canvas.reveal("verify", canvas.choose(rule, prediction, canvas.block))
                continue
            prediction = yield from self._verify(canvas, rule, drafts, refined)

    def budget(self, canvas: Canvas) -> DraftBudget:
        """The budget of the next drafts: the engine's, or what the knobs say."""
        if self.mrp_steps != AUTO:
            return DraftBudget(0.0, self.max_drafts or 0, self.mrp_steps, copied=self.prompt_lookup_num_tokens or 0)
        budget, max_drafts = canvas.budget(), self.max_drafts or len(canvas.block.tokens)
        if budget.states > max_drafts:
            budget = budget._replace(states=max_drafts)
        if self.prompt_lookup_num_tokens is not None and budget.copied > self.prompt_lookup_num_tokens:
            budget = budget._replace(copied=self.prompt_lookup_num_tokens)
        return budget

    @property
    def drafts_chain(self) -> bool:
        """Whether the drafts are a chain, the published method."""
        return self.mrp_steps != AUTO and self.max_drafts is None

    def _num_refined(self, rule: Rule, budget: DraftBudget, *, first: bool = False) -> int:
        """The forwards of MRP for drafts of this budget, if the first one reads the state after the rule's picks.

        `first`: whether it is a block's first round. Later chains begin with two steps of the rule.
        """
        if self.drafts_chain:
            return budget.mrp_steps if first else 0
        return min(budget.mrp_steps, budget.states) if worth_drafting(rule, budget) else 0

    def _copied(self, canvas: Canvas, rule: Rule, budget: DraftBudget) -> Drafting:
        """The drafts of the block's first forward."""
        if not budget.copied or rule.needs_entropy or not worth_drafting(rule, budget):
            return {}
        return (yield from copied(canvas, rule, budget))

    def _verify(
        self, canvas: Canvas, rule: Rule, drafts: Drafts, refined: int
    ) -> Generator[Query, tuple[Prediction, ...], Prediction]:
        """Reads the drafted states, and accepts some. Returns the last state's prediction.

        `refined`: the forwards of MRP for the next drafts.
        """
        states = [canvas.block, *drafts]
        while len(states) > 1 and canvas.ends(states[-1]):  # only a chain has states that end the answer
            states.pop()
        top_logprobs = _TOP_LOGPROBS if self.drafts_decide and len(states) > 1 else 0
        gains = tuple([draft.gain for draft in drafts.values()]) if self.mrp_steps == AUTO else ()
        numbers = tuple([draft.device_number for draft in drafts.values() if draft.device_number])
        predictions = yield Evaluate(tuple(states), top_logprobs, gains, device_numbers=numbers, num_following=refined)
        if len(predictions) < len(states):
            drafts = {state: drafts[state] for state in states[1 : len(predictions)]}
        choose: _Choose = partial(canvas.choose, rule)
        if self.margin is not None:
            choose = accept_within_margin(canvas, rule, drafts, self.margin)
        return _accept_drafts(canvas, predictions, drafts, choose)


@lru_cache
def _rule(mode: Speculative) -> Rule:
    return mode.plain.rule


def _draft_tree(canvas: Canvas, prediction: Prediction, rule: Rule, budget: DraftBudget) -> Drafting | Drafts:
    """The drafts of a tree, or their generator."""
    if budget.device_numbers:
        return by_rule(canvas, prediction, rule, budget.device_numbers)
    return tree(canvas, prediction, rule, budget) if worth_drafting(rule, budget) else {}


def _accept_drafts(canvas: Canvas, predictions: Sequence[Prediction], drafts: Drafts, choose: _Choose) -> Prediction:
    """Accepts drafted states, one after the other, while they have predictions. Returns the last prediction.

    `predictions`: the predictions of the canvas's block and of the first drafts.
    """
    block, index = canvas.block, 0
    revealed: list[Pick] = []
    sizes: list[int] = []
    accepted: dict[int, tuple[Pick, ...]] = {}  # the picks that led to each accepted draft
    while index < len(predictions) and not block.complete:
        prediction = predictions[index]
        picks = choose(prediction, block)
        revealed += picks
        sizes.append(len(picks))
        block = canvas.after(block, picks)
        next_draft = drafts.get(block)
        if next_draft is None:
            break
        index = next_draft.number
        accepted[index] = picks
    drafted = [pick for picks in accepted.values() for pick in picks]
    num_accepted = len(drafted)
    gains: list[tuple[float, int]] = []
    for draft in drafts.values():
        gains.append((draft.gain, len(accepted.get(draft.number, ()))))
        if draft.number not in accepted:
            drafted += draft.picks
    step = Step(
        "verify",
        tuple(revealed),
        drafted=tuple(drafted),
        accepted=num_accepted,
        gains=tuple(gains),
        sizes=tuple(sizes),
    )
    canvas.record(step, block)
    return prediction


def accept_within_margin(canvas: Canvas, rule: Rule, drafts: Drafts, margin: float) -> _Choose:
    """The choice of the rule's picks if they were drafted. Else of the first drafted step that is near enough, if any.

    `margin`: a ratio of probabilities, above 0, up to 1. Predictions must have the two top tokens of each position.
    """

    def choose(prediction: Prediction, block: Block) -> tuple[Pick, ...]:
        picks = canvas.choose(rule, prediction, block)
        if canvas.after(block, picks) in drafts:
            return picks
        predicted = {pick.position: pick for pick in prediction.picks}
        following = (draft.picks for state, draft in drafts.items() if canvas.leads(block, draft.picks, state))
        accepted = (_accepted(predicted, step, picks, margin) for step in following)
        return next(filter(None, accepted), picks)

    return choose


def _accepted(
    predicted: Mapping[int, Pick], drafted: Sequence[Pick], picks: Sequence[Pick], margin: float
) -> tuple[Pick, ...]:
    """The drafted step with the backbone's confidences. Empty if one of its tokens is not near enough.

    A token at a position that the rule does not pick needs more than `margin` times the lowest confidence of `picks`,
    the rule's picks.
    """
    lowest, positions = min(pick.confidence for pick in picks), {pick.position for pick in picks}
    accepted = []
    for draft in drafted:
        position = draft.position
        if position not in predicted or (pick := _near(predicted[position], draft.token, margin)) is None:
            return ()
        if position not in positions and pick.confidence <= margin * lowest:
            return ()
        accepted.append(pick)
    return tuple(accepted)


def _near(predicted: Pick, token: int, margin: float) -> Pick | None:
    """The pick of a drafted token if it is the backbone's choice or within the margin. Else None."""
    if token == predicted.token:
        return predicted
    logprobs = predicted.logprobs
    if logprobs is None or len(logprobs.top) < _TOP_LOGPROBS:
        return None
    first, second = logprobs.confidences[:_TOP_LOGPROBS]
    for (other, logprob), confidence in zip(logprobs.top, (first, second), strict=False):
        if other == token and second > margin * first:
            return Pick(predicted.position, token, confidence, logprobs, logprob)
    return None
