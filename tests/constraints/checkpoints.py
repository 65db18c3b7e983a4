"""Checkpoints whose answers can be constrained: the demo, and golden networks with a tokenizer that can write JSON."""

import json
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.matcher import GuidanceGrammar
from service.constraints.vocabulary import TokenVocabulary
from service.errors import InvalidRequest
from service.model import Checkpoint, load_checkpoint
from service.text import TextCodec
from tests.tiny import GOLDEN, GOLDEN_NAMES

DEMO = "demo"
NAMES = (DEMO, *GOLDEN_NAMES)
_FOLDER = GOLDEN.parent.parent / "service" / "demo"

#: pairs that are tokens of the golden networks' tokenizer, as byte-level vocabularies write them
_PAIRS = [
    *[("{", '"'), ('"', ":"), (",", "Ġ"), ('"', "}"), ('"', ","), ("[", "]"), ("{", "}"), ("Ġ", '"'), ("}", "]")],
    *[("t", "r"), ("u", "e"), ("f", "a"), ("l", "s"), ("n", "u"), ("l", "l"), ("i", "n"), ("a", "n"), ("e", "r")],
    *[(str(first), str(second)) for first in range(10) for second in range(10)],
]


@cache
def checkpoint(name: str) -> Checkpoint:
    """By name, in float32."""
    return load_checkpoint(_FOLDER if name == DEMO else GOLDEN / name)


@cache
def tokenizer(name: str) -> Tokenizer:
    """The demo's own; for the golden networks one of 512 tokens whose mask and end are theirs."""
    return Tokenizer.from_file(str(_FOLDER / "tokenizer.json")) if name == DEMO else byte_pairs()


@cache
def vocabulary(name: str) -> TokenVocabulary:
    """What grammars need of it."""
    config = checkpoint(name).config
    return TokenVocabulary(tokenizer(name).to_str(), config.vocab_size, config.eos_token_ids)


@cache
def compiled(name: str, constraint: Constraint) -> GuidanceGrammar:
    """A constraint for a checkpoint."""
    return compile_grammar(constraint, vocabulary(name))


def lenient(schema: Any) -> GuidanceGrammar:
    """The demo's grammar of a schema that is not strict."""
    return compile_grammar(Constraint.json(schema, "form", strict=False), vocabulary(DEMO))


def library_takes(schema: Any) -> bool:
    """Whether the library takes a schema as it is."""
    try:
        compile_grammar(Constraint("json", json.dumps(schema), "form"), vocabulary(DEMO))
    except InvalidRequest:
        return False
    return True


def accepts(grammar: GuidanceGrammar, text: str, words: Tokenizer | None = None) -> bool:
    """Whether a grammar allows a text as a whole answer. `words`: the tokenizer, by default the demo's."""
    ids = tuple((words or tokenizer(DEMO)).encode(text).ids)
    matcher = grammar.open()
    return matcher.allowed((), ids) == len(ids) and matcher.complete(ids)


def text_of(name: str, token_ids: tuple[int, ...]) -> str:
    """The text of an answer."""
    return tokenizer(name).decode(list(token_ids), skip_special_tokens=True)


def prompt(name: str) -> tuple[int, ...]:
    """A prompt that is no whole number of blocks."""
    if name == DEMO:
        messages = [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}]
        return tuple(TextCodec.load(_FOLDER).encode_chat(messages))
    return (443, 286, 438, 473, 399, 238, 231, 260, 17, 4, 99)


def byte_pairs(size: int = 512) -> Tokenizer:
    """Every byte, some pairs and words that nothing merges to; the last but two are mask, end and another one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *("".join(pair) for pair in _PAIRS)]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, _PAIRS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([f"{number}é😀" for number in range(len(words), size - 3)])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|MASK|>", "<|eos|>", "<|pad|>")])
    return tokenizer
