"""CCD (arXiv 2512.02044), with its adaptive number of tokens: what two successive forwards agree on is revealed.

`_sample_inference_lookahead` (`seek_mode`) of tonyckc/CCD-DLM-code. The candidates are the surest positions of a
forward. Those that were candidates of the forward before, too, with the same likeliest token, are revealed together.
If the surest position is not among them, it alone is revealed. The number of candidates grows by one a forward, from
one to `width` (published: 5). The paper's mean over past distributions is not in that code and not built.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from dev.lab.rules.method import COUNT, Choose, Method, Reveal
from service.decode.block import Block, Pick
from service.decode.policy import Prediction


class Coherent(Reveal, frozen=True):
    """The candidates on which two forwards agree, or the most confident position."""

    mode: ClassVar[str] = "ccd"
    width: Annotated[int, COUNT] = 5

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is known of it yet
        """Remembers the candidates of the last forward with their tokens."""
        before: dict[int, int] = {}
        width = 0

        def choose(reading: Prediction) -> tuple[Pick, ...]:
            nonlocal width
            width = min(width + 1, self.width)
            ranked = reading.most_confident(len(reading.picks)) if len(reading.picks) > 1 else reading.picks
            agreed = [pick for pick in ranked[:width] if before.get(pick.position) == pick.token]
            chosen = tuple(agreed) if ranked[0].position in before and agreed else ranked[:1]
            left = [pick for pick in ranked if pick not in chosen][:width]
            before.clear()
            before.update((pick.position, pick.token) for pick in left)
            return chosen

        return choose


METHOD = Method(
    "CCD",
    "arXiv 2512.02044",
    "its released code: agreement of two forwards, adaptive number",
    (Coherent(), Coherent(2)),
    (Coherent(3), Coherent(8)),
)
