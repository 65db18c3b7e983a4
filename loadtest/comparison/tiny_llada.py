"""Writes a tiny random stand-in for LLaDA: its vocabulary size and mask token, two random layers.

`python loadtest/comparison/tiny_llada.py FOLDER`, with the transformers 4 and the torch of the server
that is to load it.
Its answers are noise; what is looked at is the server.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCABULARY, MASK, END = 126464, 126336, 126081
PRINTABLE = [chr(code) for code in range(32, 127)]
CODE = '''"""A bidirectional transformer with the loading interface of LLaDA's remote code."""
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput


class TinyConfig(PretrainedConfig):
    model_type = "tiny_llada"

    def __init__(self, vocab_size=126464, hidden_size=48, n_layers=2, n_heads=4, **others):
        super().__init__(**others)
        self.vocab_size, self.hidden_size, self.n_layers, self.n_heads = vocab_size, hidden_size, n_layers, n_heads


class TinyLLaDA(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        size = config.hidden_size
        self.tokens, self.places = nn.Embedding(config.vocab_size, size), nn.Embedding(2048, size)
        shape = {"d_model": size, "nhead": config.n_heads, "dim_feedforward": 4 * size, "dropout": 0.0}
        made = (nn.TransformerEncoderLayer(**shape, batch_first=True, norm_first=True) for _ in range(config.n_layers))
        self.layers = nn.ModuleList(made)
        self.head = nn.Linear(size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None].expand_as(input_ids)
        hidden, absent = self.tokens(input_ids) + self.places(position_ids), None
        if attention_mask is not None:
            absent = torch.zeros(input_ids.shape, dtype=hidden.dtype).masked_fill(attention_mask == 0, -1e9)
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=absent)
        return MaskedLMOutput(logits=self.head(hidden))
'''
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}assistant: "


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for every printable character; names for all the others."""
    names = [*PRINTABLE, *(f"<u{number}>" for number in range(len(PRINTABLE), VOCABULARY))]
    names[MASK], names[END], names[END + 1] = "<|mdm_mask|>", "<|endoftext|>", "<|unk|>"
    special = {"eos_token": names[END], "pad_token": names[END], "unk_token": names[END + 1]}
    bare = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, special["unk_token"]))
    bare.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    bare.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=bare, mask_token=names[MASK], padding_side="left", **special)
    fast.chat_template = TEMPLATE
    return fast


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "modeling_tiny.py").write_text(CODE)
    tokenizer().save_pretrained(folder)
    sys.path.insert(0, str(folder))
    from modeling_tiny import TinyConfig, TinyLLaDA

    torch.manual_seed(0)
    config = TinyConfig(
        auto_map={
            name: f"modeling_tiny.Tiny{what}" for name, what in (("AutoConfig", "Config"), ("AutoModel", "LLaDA"))
        }
    )
    model = TinyLLaDA(config)
    with torch.no_grad():  # sure of itself in characters, less in other names, never at the end
        model.head.weight[: len(PRINTABLE)] *= 3.0
        model.head.weight[len(PRINTABLE) : END] *= 0.6
        model.head.weight[END:] = 0
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main()
