"""Constraints on answers: JSON schemas, regular expressions, choices and grammars, by llguidance.

A request has a `Constraint`, which the ingress sends to the replica. The replica compiles it (`compiler.py`), and the
engine follows the compiled grammar through the protocols of `decode` (`matcher.py`). The library is imported with the
compiler, so an ingress does not load it.
"""

from service.constraints.constraint import Constraint, Owner

__all__ = ["Constraint", "Owner"]
