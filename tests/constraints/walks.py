"""Random answers that a grammar allows."""

import json
import random
from collections.abc import Collection
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from service.constraints.matcher import GuidanceGrammar
from tests.constraints.checkpoints import DEMO, lenient, tokenizer, vocabulary

EOS = vocabulary(DEMO).eos[0]
#: tokens that bring an answer to its end soon
_LIKED = {EOS, *(tokenizer(DEMO).encode(text).ids[0] for text in ('"', "}", "]", "1", "a", ",", ":"))}


def walk(grammar: GuidanceGrammar, eos: int, rng: random.Random, liked: Collection[int], longest: int) -> list[int]:
    """Token ids of an answer; it ends with the end token if it is complete. `liked`: tokens to prefer where allowed."""
    way, ids = grammar.open(), list[int]()
    while len(ids) < longest:
        forced = way.forced(())
        if not forced:
            bits = np.unpackbits(way.mask(()), bitorder="little")
            allowed, wanted = np.flatnonzero(bits), sorted(token for token in liked if bits[token])
            if bits[eos] and rng.random() < 0.3:
                wanted = [eos]
            forced = (int(rng.choice(wanted if wanted and rng.random() < 0.4 else allowed)),)
        assert way.allowed((), forced) == len(forced)
        ids += forced
        if ids[-1] == eos:
            return ids
        way.advance(forced)
    return ids


def text_of(tokenizer: Tokenizer, ids: list[int], eos: int) -> str:
    """The text of an answer."""
    return tokenizer.decode([token for token in ids if token != eos], skip_special_tokens=True)


def answers(schema: Any, count: int = 8) -> list[Any]:
    """Some random answers of the demo that a schema allows, which is not strict."""
    grammar, rng, made = lenient(schema), random.Random(json.dumps(schema)), list[Any]()
    for _ in range(count):
        ids = walk(grammar, EOS, rng, _LIKED, 150)
        text = text_of(tokenizer(DEMO), ids, EOS)
        if ids[-1] == EOS and "\ufffd" not in text:
            made.append(json.loads(text))
    return made
