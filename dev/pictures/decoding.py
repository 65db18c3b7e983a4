"""Pictures of an answer while it is decoded, from its own trace: static beside speculative (GIF), every mode (PNG)."""

from collections.abc import Iterator
from pathlib import Path

from dev.pictures.filling import Answer
from dev.pictures.film import animate, draw_still
from service.decode import modes
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.demo import CHECKPOINT
from service.library import TextModel

#: the question of README's example
QUESTION = "Tom has 5 apples, gets 3, loses 2."


def draw_decoding(folder: Path, prompt: str = QUESTION) -> Iterator[Path]:
    """Writes `decoding.gif` and a still of every mode, decoded by the demo. Yields the path of each."""
    model = TextModel.load(CHECKPOINT, threads=1)
    stills, text_of = folder / "modes", _Texts(model)
    stills.mkdir(parents=True, exist_ok=True)
    pair = [_decode(model, prompt, mode, mode.name) for mode in (Static(), Speculative(mrp_steps=4))]
    animate(pair, text_of, prompt, folder / "decoding.gif")
    yield folder / "decoding.gif"
    for title, mode in pictured_modes():
        path = stills / f"{mode.name}.png"
        draw_still(_decode(model, prompt, mode, title), text_of, path)
        yield path


def pictured_modes() -> list[tuple[str, DecodingMode]]:
    """Every mode, with the knobs of its picture."""
    return [
        ("static", modes.Static()),
        ("dynamic, threshold 0.5", modes.Dynamic(0.5)),
        ("sequential, bound 0.1", modes.Sequential(entropy_bound=0.1)),
        ("entropy, bound 0.1", modes.Entropy(0.1)),
        ("direct, 2 MRP steps", modes.Direct(2)),
        ("speculative, 4 MRP steps", modes.Speculative(mrp_steps=4)),
        ("remask, threshold 0.5", modes.Remask(0.5)),
        ("edit, above 0.5 and 0.9", modes.Edit(0.5, 0.9)),
    ]


def _decode(model: TextModel, prompt: str, mode: DecodingMode, title: str) -> Answer:
    """Decodes one greedy answer. The prompt fills the first positions of its first block."""
    messages = [{"role": "user", "content": prompt}]
    [answer] = model.generate([messages], mode)
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
