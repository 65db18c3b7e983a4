"""The experiments of dev/lab/training-log.md: the demo's tasks and texts as files, MRP as the published loops use it.

`python -m training.demo.experiments tasks FILE --count N`, `… texts FILE --count N` and `… published CHECKPOINT FILE`.
`… heldout FILE --count 1200` wrote the demo's held-out problems, `… prompts FILE --kind form` problems of one kind.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from service.demo import CHECKPOINT
from service.model import load_checkpoint
from training.chains import Rows
from training.conversations import Codec, Limits, read_corpus
from training.demo import tasks
from training.demo.text import PROMPT, WINDOW, library_files
from training.demo.tokenizer import ASSISTANT, END, USER, control, encode_text
from training.evaluation import evaluate
from training.layout import Layout
from training.simulate import Drafting
from training.stream import Shape, Stream

_DRAFTS = 4


class WithoutPrefix(Rows):
    """MRP whose layers read only the block, as in the published speculative and remask loops."""

    def reads(self, layout: Layout, copies: int) -> Tensor:
        """No position of the clean part."""
        return torch.zeros_like(layout.reads(copies))


class DemoCodec:
    """The demo's tokenizer and chat template without the libraries of the service."""

    def __init__(self, folder: str) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        return encode_text(self._tokenizer, text)

    def chat_pieces(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True
    ) -> list[tuple[list[int], int | None]]:
        """As `ChatCodec.chat_pieces`."""
        pieces: list[tuple[list[int], int | None]] = []
        for number, message in enumerate(messages):
            before, after = (ASSISTANT, [END]) if message["role"] == "assistant" else (USER, [])
            pieces.append(([control(self._tokenizer, before)], None))
            pieces.append((self.encode(message["content"]), number))
            pieces.append(([control(self._tokenizer, name) for name in after], None))
        return [*pieces, ([control(self._tokenizer, ASSISTANT)] if answer else [], None)]


def write_tasks(file: Path, count: int) -> None:
    """Writes conversations from the training side of the demo's tasks."""
    rng = random.Random(7)
    with file.open("w", encoding="utf-8") as out:
        for example in (tasks.draw(rng) for _ in range(count)):
            turns = (("user", example.prompt), ("assistant", example.answer))
            out.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}) + "\n")


def write_prompts(file: Path, count: int, kind: str) -> None:
    """Writes problems of one kind without answers. Each is written once, so there may be fewer than `count`."""
    rng = random.Random(7)
    problems = dict.fromkeys(tasks.KINDS[kind](rng) for _ in range(count))
    with file.open("w", encoding="utf-8") as out:
        for problem in problems:
            out.write(json.dumps({"messages": [{"role": "user", "content": problem}]}) + "\n")


def write_texts(file: Path, count: int) -> None:
    """Writes windows of the training side of the demo's text: prompts with continuations. No two overlap."""
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    files = [encode_text(tokenizer, text) for text in library_files(heldout=False)]
    windows = [tokens[at : at + WINDOW] for tokens in files for at in range(0, len(tokens) - WINDOW + 1, WINDOW)]
    with file.open("w", encoding="utf-8") as out:
        for window in random.Random(7).sample(windows, count):
            prompt, completion = tokenizer.decode(window[:PROMPT]), tokenizer.decode(window[PROMPT:])
            out.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


def write_heldout(file: Path, count: int) -> None:
    """Writes held-out problems, each once."""
    rng, prompts = random.Random(4), dict[str, None]()
    while len(prompts) < count:
        prompts[tasks.draw(rng, heldout=True).prompt] = None
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")


def compare_published(name: str, file: Path, codec: Codec, batches: int) -> None:
    """Prints held-out scores of zero, and of MRP without and with the parts that the published loops leave out.

    The published loops call MRP without its prefix. They make the first draft of later rounds from logits that are
    older than the last pick.
    """
    checkpoint = load_checkpoint(name)
    config = checkpoint.config
    if checkpoint.mrp is None:
        raise SystemExit(f"{name} has no MRP module")
    corpus = read_corpus(file, codec, config.eos_token_ids, Limits(config.block_size), heldout=0.05)
    stream = Stream(corpus.heldout, Shape(16, config.block_size, 0, config.mask_token_id), seed=0)
    ends, models = torch.tensor(config.eos_token_ids), (checkpoint.backbone, checkpoint.mrp)
    ways = {
        "published": Drafting(_DRAFTS, stale_first=True, rows=WithoutPrefix),
        "fresh first draft": Drafting(_DRAFTS, rows=WithoutPrefix),
        "prefix": Drafting(_DRAFTS, stale_first=True),
        "both": Drafting(_DRAFTS),
    }
    for label, drafting in ways.items():
        torch.manual_seed(0)
        batches_of = map(stream.batch, range(min(batches, stream.batches_per_epoch)))
        mrp, zero = evaluate(models, batches_of, ends, drafting)
        print(label, json.dumps(mrp.numbers()), flush=True)
    print("zero", json.dumps(zero.numbers()))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tasks", "texts", "prompts", "heldout", "published"])
    parser.add_argument("names", nargs="+", help="published: CHECKPOINT FILE; the others: FILE")
    parser.add_argument("--count", type=int, default=8000, help="tasks, texts or problems to write")
    parser.add_argument("--kind", choices=[*tasks.KINDS], default="form", help="of the prompts")
    parser.add_argument("--batches", type=int, default=8, help="batches to evaluate")
    args = parser.parse_args()
    if args.what == "tasks":
        write_tasks(Path(args.names[0]), args.count)
    elif args.what == "texts":
        write_texts(Path(args.names[0]), args.count)
    elif args.what == "prompts":
        write_prompts(Path(args.names[0]), args.count, args.kind)
    elif args.what == "heldout":
        write_heldout(Path(args.names[0]), args.count)
    else:
        compare_published(args.names[0], Path(args.names[1]), DemoCodec(args.names[0]), args.batches)


if __name__ == "__main__":
    main()
