"""Constraints on answers: JSON schemas, regular expressions, choices and grammars, by llguidance.

A request has a `Constraint`, which the ingress sends to the replica. The replica compiles it (`compiler.py`), and the
engine follows the compiled grammar through the protocols of `decode` (`matcher.py`). The library is imported with the
compiler, so an ingress does not load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from service.constraints.constraint import Constraint, Owner

if TYPE_CHECKING:
    from service.constraints.compiler import GrammarCompiler
else:

    def __getattr__(name: str) -> type:
        if name != "GrammarCompiler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("service.constraints.compiler").GrammarCompiler


__all__ = ["Constraint", "GrammarCompiler", "Owner"]
