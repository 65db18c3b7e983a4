"""A golden checkpoint that chats as Qwen3 does: its chat template, its marks of calls and thinking, a token a byte."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from service.model import Checkpoint
from tests.text.templates import QWEN3
from tests.tiny import GOLDEN

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>")
#: a token that the golden checkpoint chooses often
_POPULAR = 471
#: the golden checkpoint's mask and end
_CONTROL = ("<|im_start|>", "<|MASK|>", "<|im_end|>")


def tokenizer(marks: Sequence[str] = MARKS, control: Sequence[str] = _CONTROL) -> Tokenizer:
    """512 tokens: bytes, the marks, which are text, words that nothing merges to, and control tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    made.add_tokens([f"{number}é😀" for number in range(256 + len(marks), 511 - len(control))])
    made.add_special_tokens([AddedToken(name, special=True) for name in control])
    return made


def give_qwen3(folder: Path, template: str = QWEN3, name: str = "sdar-mrp-random-a") -> Path:
    """A copy of a golden checkpoint that chats by the template."""
    shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    config = folder / "tokenizer_config.json"
    changed = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    config.write_text(json.dumps(changed), "utf-8")
    return folder


def liking(checkpoint: Checkpoint, *marks: str) -> Checkpoint:
    """The checkpoint with another output head: where it chose a token that it often chooses, it chooses the marks.

    A tenth more for each further mark.
    """
    head = checkpoint.backbone.head
    with torch.no_grad():
        for number, mark in enumerate(marks):
            head[tokenizer().token_to_id(mark)] = head[_POPULAR] * (1.2 + number / 10)
    return checkpoint
