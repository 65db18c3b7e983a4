"""A stub of xgrammar for `bring_lmdeploy.sh`. LMDeploy makes these objects at its start; a grammar would raise.

The package itself needs apache-tvm-ffi, and must understand the tokenizer. Nothing here asks for a grammar.
"""

from typing import Any, Self


class TokenizerInfo:
    """LMDeploy hands it to the compiler."""

    @classmethod
    def from_huggingface(cls, *_: Any, **__: Any) -> Self:
        return cls()


class GrammarCompiler:
    """Raises if anything is compiled."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"xgrammar is a stub here: {name}")


class GrammarMatcher(GrammarCompiler):
    """Named in annotations only."""


class CompiledGrammar:
    """Named in annotations only."""
