"""`mrp-serve animate`: pictures of an answer while it is decoded, from its own trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import Model, Threads
from service.cli.output import notes
from service.errors import SettingsError

if TYPE_CHECKING:
    from service.decode.mode import DecodingMode
    from service.library import TextModel
    from service.quality.filling import Answer

#: the question of README's example
QUESTION = "Tom has 5 apples, gets 3, loses 2."


def command(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")],
    prompt: Annotated[str, typer.Option(help="The user's message.")] = QUESTION,
    model: Model = None,
    threads: Threads = None,
) -> None:
    """Draws an answer while its blocks are filled: static beside speculative (GIF), and every mode (PNG)."""
    try:
        from service.quality.film import animate, draw_still
    except ModuleNotFoundError as error:
        raise SettingsError(f"animate needs {error.name}: pip install '.[plot]'") from None
    from service.decode.modes import Speculative, Static
    from service.demo import CHECKPOINT
    from service.library import TextModel

    loaded = TextModel.load(model or CHECKPOINT, threads=threads)
    stills = out / "modes"
    stills.mkdir(parents=True, exist_ok=True)
    pair = [_decode(loaded, prompt, params, params.mode) for params in (Static(), Speculative(mrp_steps=4))]
    animate(pair, _Texts(loaded), prompt, out / "decoding.gif")
    notes().print(f"wrote {out / 'decoding.gif'}", soft_wrap=True)
    for title, params in shown():
        path = stills / f"{params.mode}.png"
        draw_still(_decode(loaded, prompt, params, title), _Texts(loaded), path)
        notes().print(f"wrote {path}", soft_wrap=True)


def shown() -> list[tuple[str, DecodingMode]]:
    """Every mode, with the knobs of its picture."""
    from service.decode import modes

    return [
        ("static", modes.Static()),
        ("dynamic, threshold 0.5", modes.Dynamic(0.5)),
        ("sequential, bound 0.1", modes.Sequential(entropy_bound=0.1)),
        ("entropy, bound 0.1", modes.Entropy(0.1)),
        ("direct, 2 MRP steps", modes.Direct(2)),
        ("speculative, 4 MRP steps", modes.Speculative(mrp_steps=4)),
        ("remask, threshold 0.5", modes.Remask(0.5)),
    ]


def _decode(model: TextModel, prompt: str, params: DecodingMode, title: str) -> Answer:
    """Decodes one greedy answer. The prompt fills the first positions of its first block."""
    from service.quality.filling import Answer

    messages = [{"role": "user", "content": prompt}]
    [answer] = model.generate([messages], params)
    size = model.checkpoint.config.block_size
    length = len(model.codec.encode_chat(messages))
    completion = answer.completion
    steps = [block.steps for block in completion.blocks]
    stats = completion.stats
    return Answer(title, steps, size, length % size, stats.decoded_tokens, stats.forwards.mrp)


class _Texts:
    """The text of a token id; an end token is `end`."""

    def __init__(self, model: TextModel) -> None:
        self._codec = model.codec
        self._ends = frozenset(model.checkpoint.config.eos_token_ids)

    def __call__(self, token: int) -> str:
        return "end" if token in self._ends else self._codec.decode([token]).strip()
