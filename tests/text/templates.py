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

#: `qwen3` leaves out the thinking of turns before the last question; new lines around parts are its own. `trim`, as
#: Gemma's, trims contents and puts the system message before the first question. `brackets`, as Llama 2's, has no
#: control token at the borders of contents. `composed` and `joined` (with tools), as Phi's, put control tokens together
#: of pieces. `conditions` looks at contents, repeats, reverses and quotes them.
_NAMES = ("chatml", "qwen3", "trim", "brackets", "composed", "conditions", "joined")
_FOLDER = Path(__file__).parent / "jinja"
_FILES = {name: (_FOLDER / f"{name}.jinja").read_text("utf-8").removesuffix("\n") for name in _NAMES}
CHATML, QWEN3, JOINED = _FILES["chatml"], _FILES["qwen3"], _FILES.pop("joined")
_DEMO = json.loads((CHECKPOINT / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
TEMPLATES = {**_FILES, "demo": _DEMO}

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
