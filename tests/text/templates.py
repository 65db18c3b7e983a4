"""Chat templates of the kinds that checkpoints have, and tokenizers that merge tokens over every border."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from service.demo import CHECKPOINT

CONTROL = (
    "<|im_start|>", "<|im_end|>", "<|MASK|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<s>", "</s>",
)  # fmt: skip
ADDED = ("<think>", "</think>", "<tool_response>", "</tool_response>", "<tool_call>", "</tool_call>")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: of Qwen3's form: thinking of turns before the last question is left out, new lines around parts are its own
QWEN3 = (Path(__file__).parent / "qwen3.jinja").read_text("utf-8").removesuffix("\n")

#: as Gemma's: contents are trimmed, the first system message is put before the first question, roles have other names
TRIM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}<|im_start|>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ first if loop.first else '' }}{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)

#: as Llama 2's: no control token at the borders of contents, end tokens by name
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ ' ' + m['content'] + ' ' + eos_token }}"
    "{% else %}{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' }}{% endif %}{% endfor %}"
)

#: as Phi's: control tokens put together of pieces
COMPOSED = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + '\n' + m['content'] + '<|end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

#: looks at contents, repeats, reverses and quotes them
CONDITIONS = (
    "{% for m in messages[::-1] %}<|im_start|>{{ m.role }}{% if m.content.startswith('<think>') %} thinks{% endif %}"
    "{% if m.content | length > 3 and '\n' in m.content %} in {{ m.content.split('\n') | length }} lines{% endif %}\n"
    "{{ m.content | tojson }}{{ m.content | upper }}{{ m.content.replace('x', '') }}{{ m.content[::-1] }}<|im_end|>"
    "{% endfor %}{{ messages[-1].content }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

DEMO = json.loads((CHECKPOINT / "tokenizer_config.json").read_text("utf-8"))["chat_template"]

TEMPLATES = {
    "chatml": CHATML, "qwen3": QWEN3, "trim": TRIM, "brackets": BRACKETS, "composed": COMPOSED,
    "conditions": CONDITIONS, "demo": DEMO,
}  # fmt: skip

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXTS = ["user\n\n\n hi.\n\n> a |>\n<| im_start im_end\n", "assistant\n\n  model\n [INST]  x x [/INST]\n\n.\n\n"] * 9


def byte_level(**flags: bool) -> Tokenizer:
    """As Qwen's: bytes, new lines are merged with what is before them. `flags`: of the control tokens."""
    tokenizer = Tokenizer(models.BPE())
    if flags.get("normalized"):
        tokenizer.normalizer = normalizers.NFKC()
    split = pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return _with_control_tokens(tokenizer, flags)


def words_with_spaces(legacy: bool) -> Tokenizer:
    """As Llama's: a space before the first word, `legacy` before every part; bytes for what is no word."""
    tokenizer = Tokenizer(models.BPE())
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.train_from_iterator(_TEXTS, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    for token in ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]:
        model["vocab"][token] = len(model["vocab"])
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer.model = models.BPE(model["vocab"], merges, byte_fallback=True, unk_token="<unk>")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts)
    return _with_control_tokens(tokenizer, {})


def _with_control_tokens(tokenizer: Tokenizer, flags: dict[str, bool]) -> Tokenizer:
    flags = {"normalized": False} | flags
    tokenizer.add_special_tokens([AddedToken(token, special=True, **flags) for token in (*CONTROL, "<unk>")])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


TOKENIZERS = {
    "bytes": byte_level(),
    "bytes, eating spaces": byte_level(lstrip=True, rstrip=True),
    "bytes, normalized": byte_level(normalized=True),
    "words": words_with_spaces(legacy=False),
    "words, legacy": words_with_spaces(legacy=True),
}


def of(tokenizer: str, template: str) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template, as a checkpoint has them."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(TOKENIZERS[tokenizer].to_str()),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        mask_token="<|MASK|>",
        chat_template=TEMPLATES.get(template, template),
    )
