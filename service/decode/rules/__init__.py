"""Reveal rules, one a file: which picks of a reading are fixed next.

A mode may be nothing but a rule (`RuleParams`); `speculative` gives any rule's output in fewer forwards. A rule sees
one reading and keeps nothing.
"""

from service.decode.rules.above import Above
from service.decode.rules.leftmost import Leftmost
from service.decode.rules.lowest_entropy import LowestEntropy
from service.decode.rules.most_confident import MostConfident

Rule = MostConfident | Above | Leftmost | LowestEntropy

__all__ = ["Above", "Leftmost", "LowestEntropy", "MostConfident", "Rule"]
