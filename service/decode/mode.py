"""A decoding mode: a frozen class whose fields are the knobs that a request may set."""

from typing import ClassVar, NamedTuple

from msgspec import Struct

from service.decode.canvas import Canvas
from service.decode.knobs import knobs_in
from service.decode.policy import Decoding, Evaluate
from service.decode.rules import JointlyAbove, LeftToRight, Rule
from service.errors import InvalidRequest


class Pace(NamedTuple):
    """The forwards of a block: one of the backbone, then `mrp_steps` of MRP, and again until the block is complete.

    Each reveals `picks` tokens, or all if fewer are left. None: at least one, as its prediction decides. With a `gate`
    this rule chooses MRP's picks, perhaps none. After a forward without picks the backbone is next.
    """

    picks: int | None
    mrp_steps: int = 0
    gate: JointlyAbove | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether no prediction decides the number of picks."""
        return self.picks is not None and self.gate is None


class DecodingMode(Struct, frozen=True, array_like=True, tag=str.lower):
    """The base of all modes. In messages a mode is tagged with its class's name in small letters."""

    name: ClassVar[str]
    served_without_mrp: ClassVar[bool] = True  # whether a checkpoint without MRP can serve it
    moves_tokens: ClassVar[bool] = False  # whether it inserts and deletes tokens, in models that are trained for it
    served_in_order: ClassVar[bool] = True  # whether a causal model can, which fills blocks from left to right

    def __init_subclass__(cls) -> None:
        """A class that overrides `decode` alone has no pace: its policy is another one."""
        if "decode" in cls.__dict__ and "pace" not in cls.__dict__:
            cls.pace = DecodingMode.pace  # type: ignore[method-assign]

    @property
    def needs_mrp(self) -> bool:
        return not self.served_without_mrp

    @property
    def pace(self) -> Pace | None:
        """The forwards of a block, where its rule alone chooses the picks of each. None elsewhere.

        A mode that drafts has a pace as long as it drafts nothing.
        """
        return None

    @property
    def drafts_decide(self) -> bool:
        """Whether drafts may change the output, which then depends on more than the model."""
        return False

    @property
    def rule(self) -> Rule:
        """The rule that chooses which positions a forward of the backbone reveals."""
        raise NotImplementedError

    def decode(self, canvas: Canvas) -> Decoding:
        """The policy: decodes the canvas's block and asks for forwards (policy.py)."""
        raise NotImplementedError

    def check(self, block_size: int) -> None:
        """InvalidRequest if a knob is out of range for this block size."""
        for name, knob in knobs_in(type(self)).items():
            if (value := getattr(self, name)) is not None:
                knob.check(name, value, block_size)


class RuleMode(DecodingMode, frozen=True):
    """A mode that consists of a rule only. `speculative` gives the same output in fewer forwards."""

    @property
    def pace(self) -> Pace:
        return Pace(self.rule.num_picks)

    def decode(self, canvas: Canvas) -> Decoding:
        """Every forward reveals the picks that the rule chooses."""
        rule, block = canvas.rule(self.rule), canvas.block
        while not block.complete:
            (prediction,) = yield Evaluate((block,))
            picks = canvas.choose(rule, prediction, block)
            if prediction.positions and not picks:
                raise InvalidRequest(f"the rule {rule!r} picks no position, expected is one at least", param="mode")
            canvas.reveal("denoise", picks)
            block = canvas.block


class ScoreMode(DecodingMode, frozen=True, tag="score"):
    """The mode of requests whose masked positions are scored. Nothing is decoded, and no client can name it."""

    name: ClassVar[str] = "score"

    @property
    def rule(self) -> Rule:
        return LeftToRight()

    def decode(self, canvas: Canvas) -> Decoding:
        yield from ()
