"""Reveal rules, one per file. A rule chooses the picks of a reading that are revealed next.

A mode may consist of a rule only (`RuleMode`). `speculative` gives any rule's output in fewer forwards. A rule sees
one reading and keeps no state. Its `in_order` fills as many positions from left to right: for answers with a grammar.
"""

from service.decode.rules.above import ConfidenceAbove
from service.decode.rules.leading import LeftToRightAbove
from service.decode.rules.leftmost import LeftToRight
from service.decode.rules.lowest_entropy import LowestEntropy
from service.decode.rules.most_confident import TopConfidence

Rule = TopConfidence | Above | LeftToRightAbove | LeftToRight | LowestEntropy

__all__ = ["Above", "LeftToRightAbove", "LeftToRight", "LowestEntropy", "TopConfidence", "Rule"]
