"""Reveal rules, one per file. A rule chooses the picks of a reading that are revealed next.

A mode may consist of a rule only (`RuleMode`). `speculative` gives any rule's output in fewer forwards. A rule sees
one reading and keeps no state. Its `in_order` fills as many positions from left to right: for answers with a grammar.
"""

from service.decode.rules.above import Above
from service.decode.rules.leading import Leading
from service.decode.rules.leftmost import Leftmost
from service.decode.rules.lowest_entropy import LowestEntropy
from service.decode.rules.most_confident import MostConfident

Rule = MostConfident | Above | Leading | Leftmost | LowestEntropy

__all__ = ["Above", "Leading", "Leftmost", "LowestEntropy", "MostConfident", "Rule"]
