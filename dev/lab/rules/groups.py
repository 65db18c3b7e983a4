"""The plans that `compare.py` puts beside each other, by question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dev.lab.rules.direct_in_order import DirectInOrder
from dev.lab.rules.first_draft import Chained
from dev.lab.rules.judged_remask import JudgedRemask
from dev.lab.rules.learn2pd import Learn2pd
from dev.lab.rules.mars import mars
from dev.lab.rules.s2d2 import S2d2
from dev.lab.rules.while_sure import DirectWhileSure, HoldBack, RemaskInOrder, SureInOrder
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Sequential, Speculative, Static

#: judge, what it decides by, order
_SEVERAL = (
    ("nobody", "below", "sure"),
    ("mrp_together", "below", "sure"),
    ("mrp_each", "best", "sure"),
    ("backbone_each", "below", "sure"),
    ("backbone_each", "best", "sure"),
    ("mrp_in_turn", "best", "sure"),
    ("mrp_in_turn", "best", "left"),
    ("backbone_in_turn", "best", "sure"),
    ("backbone_in_turn", "best", "left"),
)

GROUPS: Mapping[str, Sequence[DecodingMode]] = {
    "judges": [
        Static(),
        Sequential(),
        *(JudgedRemask(threshold, None, *judged) for threshold in (0.1, 0.3) for judged in _SEVERAL),
        *(JudgedRemask(0.5, None, *judged) for judged in _SEVERAL[:2]),
        Direct(2),
        Direct(4),
    ],
    "doubts": [
        Static(),
        *(JudgedRemask(reveal, doubt) for reveal in (0.1, 0.3) for doubt in (0.1, 0.3, 0.5, 0.7, 0.9)),
    ],
    "order": [
        Static(),
        Sequential(entropy_bound=0.1),
        Sequential(entropy_bound=1.0),
        Speculative(2, verify="sequential", entropy_bound=0.1),
        Speculative(4, verify="sequential", entropy_bound=0.1),
        Direct(1),
        Direct(2),
        Direct(4),
        *(DirectInOrder(steps, 0.0) for steps in (1, 2, 4)),
        *(DirectInOrder(steps, bound) for bound in (0.05, 0.1, 0.3) for steps in (1, 2, 4)),
        *(DirectWhileSure(8, threshold) for threshold in (0.7, 0.9)),
        *(DirectWhileSure(8, threshold, left=1) for threshold in (0.5, 0.7, 0.9)),
        *(RemaskInOrder(bound, doubt) for bound in (0.3, 1.0, 2.0) for doubt in (0.3, 0.7)),
    ],
    "sure": [
        Static(),
        Sequential(entropy_bound=0.1),
        Speculative(4, verify="sequential", entropy_bound=0.1),
        *(SureInOrder(steps, threshold) for steps in (1, 2, 4, 8) for threshold in (0.5, 0.7, 0.9, 0.97)),
        *(SureInOrder(4, threshold, 0.5) for threshold in (0.7, 0.9)),
    ],
    "above": [
        Static(),
        *(Dynamic(threshold) for threshold in (0.5, 0.7)),
        *(Remask(threshold) for threshold in (0.1, 0.3, 0.5)),
        *(HoldBack(one, other) for one in (0.5, 0.7, 0.9) for other in (0.3, 0.5, 0.7, 0.9)),
        *(HoldBack(0.9, threshold, 2) for threshold in (0.5, 0.7)),
    ],
    "first": [
        Static(),
        *(Chained(drafts, first) for drafts in (2, 4) for first in ("stale", "fresh", "surer", "both")),
        Chained(3, "fresh"),
        *(Chained(4, "in_doubt", sure) for sure in (0.9, 0.99)),
        Speculative(1, 2),
        Speculative(2, 2),
        Speculative(4, 4),
    ],
    "s2d2": [
        Sequential(),
        *(S2d2(span) for span in (4, 16)),
        S2d2(16, 2.0),
        *(Speculative(0, drafts, verify="sequential") for drafts in (3, 15)),
        Speculative(4, verify="sequential"),
        Speculative(verify="sequential"),
        Sequential(entropy_bound=0.1),
    ],
    "mars": [
        Static(),
        Speculative(4),
        *(Speculative(4, margin=margin) for margin in (0.3, 0.5, 0.7, 0.9)),
        Speculative(0, 4, margin=0.5),
        Speculative(4, verify="sequential"),
        *(mars(margin) for margin in (0.3, 0.7)),
    ],
    "margin": [
        Sequential(entropy_bound=0.1),
        Sequential(entropy_bound=1.0),
        Speculative(4, verify="sequential", entropy_bound=0.1),
        *(mars(margin, bound=0.1) for margin in (0.3, 0.7, 1.0)),
        mars(0.5, 2, bound=0.1),
        mars(0.5, 0, 4, 0.1),
    ],
    "rows": [
        Sequential(entropy_bound=0.1),
        *(
            Speculative(steps, states, verify="sequential", entropy_bound=0.1)
            for steps, states in ((4, None), (0, 4), (4, 4), (2, 8), (0, 8))
        ),
        *(mars(0.5, steps, states, 0.1) for steps, states in ((1, None), (4, None), (0, 4), (4, 4), (2, 8), (0, 8))),
    ],
    "bounds": [
        *(Speculative(4, 4, verify="sequential", entropy_bound=bound) for bound in (0.1, 0.5, 1.0)),
        mars(0.5, 4, 4, 0.1),
    ],
    "thousand": [
        Sequential(entropy_bound=0.1),
        Speculative(4, 4, verify="sequential", entropy_bound=0.1),
        mars(0.5, 4, 4, 0.1),
    ],
    "learned": [
        Static(),
        *(Learn2pd(threshold, kind) for kind in ("paper", "more") for threshold in (0.5, 0.7, 0.9, 0.95)),
        *(Dynamic(threshold) for threshold in (0.5, 0.7)),
        Sequential(entropy_bound=0.1),
    ],
    "published": [Remask(threshold) for threshold in (0.1, 0.2, 0.3, 0.5)],
}
