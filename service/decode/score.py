"""`score`: the params of requests that decode nothing, but have places of a pinned text read."""

from __future__ import annotations

from typing import ClassVar

from service.decode.canvas import Canvas
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding
from service.decode.rules import LeftToRight, Rule


class ScoreMode(DecodingMode, frozen=True, tag="score"):
    """Read the masked places of the prompt. Not a mode that a request may name."""

    mode: ClassVar[str] = "score"

    @property
    def rule(self) -> Rule:
        """Any, since nothing is revealed."""
        return LeftToRight()

    def decode(self, canvas: Canvas) -> Decoding:  # noqa: ARG002 - nothing is decoded
        """Asks for nothing."""
        yield from ()
