"""A scripted model: policies are driven by it without torch."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from service.decode.block import MASKED, Block, Pick, PositionLogprobs
from service.decode.canvas import Canvas, DraftBudget
from service.decode.mode import DecodingMode
from service.decode.policy import Evaluate, Prediction, Query, Refine
from service.decode.prompt_lookup import PromptLookup
from tests.predictions import likeliest, prediction_of

#: token, confidence[, entropy[, second token, its probability]]
ScriptedToken = tuple[int, float] | tuple[int, float, float] | tuple[int, float, float, int, float]
#: the scripted tokens of a state's positions
Script = Callable[[Block], Mapping[int, ScriptedToken]]


@dataclass
class Run:
    """One block decoded by a policy, and everything the policy asked for."""

    canvas: Canvas
    queries: list[Query] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.canvas.block.tokens

    @property
    def evaluations(self) -> list[Evaluate]:
        return [query for query in self.queries if isinstance(query, Evaluate)]

    @property
    def refinements(self) -> list[Refine]:
        return [query for query in self.queries if isinstance(query, Refine)]

    @property
    def revealed(self) -> list[list[tuple[int, int]]]:
        """(position, token) pairs of each step that revealed something."""
        return [[(pick.position, pick.token) for pick in step.revealed] for step in self.canvas.steps if step.revealed]


def masked_block(size: int, head: tuple[int, ...] = ()) -> Block:
    return Block(head + (MASKED,) * (size - len(head)))


def run(
    block: Block,
    mode: DecodingMode,
    backbone: Script,
    mrp: Script | None = None,
    budget: DraftBudget | None = None,
    read: int = 99,
    text: Sequence[int] = (),
) -> Run:
    """Decodes a block. Checks what the engine relies on.

    `budget`: for drafts that the engine chooses. `read`: the states of which it reads the first so many. `text`: the
    tokens before the block, from which drafts are copied.
    """
    lookup = PromptLookup(text)
    result = Run(Canvas(block, budget=lambda: budget or DraftBudget(), lookup=lambda: lookup))
    policy = mode.decode(result.canvas)
    predictions: tuple[Prediction, ...] | None = None
    handles: set[object] = set()
    while True:
        try:
            query = next(policy) if predictions is None else policy.send(predictions)
        except StopIteration:
            return result
        result.queries.append(query)
        if isinstance(query, Evaluate):
            assert query.states[0] == result.canvas.block
            assert len(query.gains) in {0, len(query.states) - 1}
            states = query.states[:read] if query.gains else query.states
            assert not query.edit or len(states) == 1
            further = {"top_logprobs": query.top_logprobs, "edit": query.edit}
            predictions = tuple(prediction(state, backbone, mode, **further) for state in states)
        else:
            assert query.after.handle in handles, "refines a reading it never got"
            assert mrp is not None
            predictions = (prediction(query.state, mrp, mode, query.rescore),)
        handles |= {read.handle for read in predictions}


def prediction(
    state: Block,
    script: Script,
    mode: DecodingMode,
    rescore: tuple[int, ...] = (),
    top_logprobs: int = 0,
    edit: tuple[int, ...] = (),
) -> Prediction:
    assert MASKED not in {state.tokens[position] for position in edit}
    positions = sorted((*state.masked, *edit))
    assert positions or rescore, "asked about a block in which there is nothing to say"
    scripted = script(state)
    picks = tuple(
        Pick(position, *scripted[position][:2], _logprobs(scripted[position], top_logprobs)) for position in positions
    )
    rescored = tuple(Pick(position, state.tokens[position], scripted[position][1]) for position in rescore)
    entropies = [scripted[position][2] for position in positions] if mode.rule.needs_entropy else ()
    return prediction_of(picks, rescored, object(), entropies)


def _logprobs(scripted: ScriptedToken, top_logprobs: int) -> PositionLogprobs | None:
    pairs = [scripted[:2], scripted[3:]] if len(scripted) > 3 else [scripted[:2]]
    return likeliest(*((token, sure) for token, sure in pairs[:top_logprobs])) if top_logprobs else None


def random_oracle(seed: int, *, tokens: int = 5, levels: int = 7) -> Script:
    """A function of the state and the seed; few tokens, confidences and entropies, so that ties happen.

    The second token is another one, and at most as likely.
    """

    def script(state: Block) -> dict[int, ScriptedToken]:
        scripted: dict[int, ScriptedToken] = {}
        for position in range(len(state.tokens)):
            digest = hashlib.blake2b(repr((seed, state.tokens, position)).encode(), digest_size=4).digest()
            token, sure = digest[0] % tokens, (digest[1] % levels + 1) / levels
            second = (token + 1 + digest[3] % max(1, tokens - 1)) % tokens
            scripted[position] = (
                token, sure, digest[2] % levels / levels, second, max(1e-9, sure * (digest[3] % 5) / 4),
            )  # fmt: skip
        return scripted

    return script


def mostly(truth: Script, other: Script, seed: int) -> Script:
    """The script `truth` for about three of four states, else `other`."""

    def script(state: Block) -> Mapping[int, ScriptedToken]:
        digest = hashlib.blake2b(repr((seed, state.tokens)).encode(), digest_size=1).digest()
        return (other if digest[0] % 4 == 0 else truth)(state)

    return script


def fixed(scripted: Mapping[int, ScriptedToken]) -> Script:
    """The same script for every state."""
    return lambda state: scripted
