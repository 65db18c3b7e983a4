"""The demo's tokenizer: byte-level BPE with single digits and its own control tokens.

It is trained on the tasks' text, so that their words are single tokens, and on Python text. It is saved in the form of
transformers: tokenizer.json, and tokenizer_config.json with a chat template.
"""

import json
import random
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.demo import tasks

PAD, USER, ASSISTANT, END, MASK = SPECIALS = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<|MASK|>")
VOCAB_SIZE = 1024
MAX_LENGTH = 1024

#: splits text into words with the space before them, single digits, single signs, and runs of spaces
_SPLIT = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(
    seed: int = 0,
    examples: int = 20000,
    texts: Iterable[str] = (),
    draw: Callable[[random.Random], tasks.Example] = tasks.draw,
) -> Tokenizer:
    """Learns the vocabulary from the training side of the tasks, which `draw` draws, and from `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(seed)
    drawn = (draw(rng) for _ in range(examples))
    written = (text for example in drawn for text in (example.prompt, example.answer))
    tokenizer.train_from_iterator(chain(written, texts), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "pad_token": PAD,
        "eos_token": END,
        "mask_token": MASK,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of plain text. The name of a control token in it stays text."""
    tokenizer.encode_special_tokens = True
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """One user turn in the form of the chat template, with the beginning of the answer."""
    return [control(tokenizer, USER), *encode_text(tokenizer, prompt), control(tokenizer, ASSISTANT)]


def control(tokenizer: Tokenizer, token: str) -> int:
    """The id of a control token."""
    token_id: int | None = tokenizer.token_to_id(token)
    if token_id is None:
        raise ValueError(f"the tokenizer has no token {token!r}")
    return token_id
