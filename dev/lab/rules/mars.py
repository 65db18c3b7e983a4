"""MARS: margin-aware verification. What was built is `speculative` with a `margin` (`service/decode/margin.py`).

Source: arXiv 2601.15498, section 3, and `mars/model/utils.py` (`evaluate_posterior`) of 5SSjw/MARS.
"""

from __future__ import annotations

from dev.lab.rules.method import Method
from service.decode.modes import Speculative


def mars(margin: float, steps: int = 4, states: int | None = None, bound: float | None = None) -> Speculative:
    """Drafts verified against `sequential`, with a bound if one is given. Without `states` a chain of `steps`."""
    return Speculative(steps, states, entropy_bound=bound, verify="sequential", margin=margin)


METHOD = Method(
    "mars",
    "arXiv 2601.15498",
    "drafts within a margin of the rule's pick are accepted",
    (
        Speculative(4, margin=0.5),
        mars(0.5),
        mars(0.5, bound=0.1),
        *(mars(margin, 4, 4, 0.1) for margin in (0.9, 0.5, 0.3)),
        mars(0.5, 0, 4, 0.1),
        Speculative(4, 4, entropy_bound=0.1, verify="sequential"),
    ),
)
