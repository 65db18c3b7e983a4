"""Pictures of decoding: a moving one of several answers beside each other, and a still of one answer.

Names and colours of the states are those of the playground (`states.json`). matplotlib brings Pillow and the fonts.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import matplotlib as mpl
from PIL import Image, ImageDraw, ImageFont

from benchmarks.style import STATES
from dev.pictures.filling import Answer, Cell, Moment, at, moments

#: pixels
_CELL_WIDTH, _CELL_HEIGHT, _GAP, _EDGE, _TITLE = 58, 28, 2, 12, 30
#: milliseconds for which a moment is shown, and for which the last one is shown
_MOMENT_MS, _END_MS = 260, 4000
#: letters of a token that fit into a cell
_FITS = 7
#: positions in a line of the picture
_CELLS = 16
_COLOURS_OF_A_FRAME = 48

_PAPER, _INK, _FAINT = "#ffffff", "#1f2328", "#6e7781"
_MASKED, _PROMPT, _OLD = "#ffffff", "#d8dee4", "#eef1f4"
_LINE, _DRAFT = STATES["masked"].light, STATES["draft"].light

LEGEND = tuple((STATES[name].light, STATES[name].label) for name in ("backbone", "draft", "accepted"))


def animate(answers: Sequence[Answer], text_of: Callable[[int], str], prompt: str, path: Path) -> None:
    """Writes a GIF: all answers at the same number of forwards of the backbone, until the last one is complete."""
    films = [moments(answer, text_of) for answer in answers]
    last = max(film[-1].forwards for film in films)
    frames = [_frame(answers, [at(film, 0) for film in films], prompt)]
    for forwards in range(last):
        frames.append(_frame(answers, [at(film, forwards, drafted=True) for film in films], prompt))
        frames.append(_frame(answers, [at(film, forwards + 1) for film in films], prompt))
    palette = frames[len(frames) // 4].quantize(_COLOURS_OF_A_FRAME)
    first, *later = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    times = [*[_MOMENT_MS] * len(later), _END_MS]
    first.save(path, save_all=True, append_images=later, duration=times, loop=0, optimize=True)


def draw_still(answer: Answer, text_of: Callable[[int], str], path: Path) -> None:
    """Writes a PNG of a finished answer. Each cell has its token and the number of the forward that fixed it."""
    end = moments(answer, text_of)[-1]
    image, pen = _sheet(_panel_height(answer) + _EDGE)
    _title(pen, _EDGE // 2, answer, end)
    for left, below, cell in _laid_out(end):
        _cell(pen, (left, _EDGE // 2 + _TITLE + below), _coloured(cell), numbered=True)
    image.quantize(_COLOURS_OF_A_FRAME).save(path, optimize=True)


def _coloured(cell: Cell) -> Cell:
    return Cell("new", cell.text, cell.source, cell.when) if cell.state == "old" else cell


def _panel_height(answer: Answer) -> int:
    lines = -(-len(answer.blocks) * answer.block_size // _CELLS)
    return _TITLE + lines * (_CELL_HEIGHT + _GAP)


def _laid_out(moment: Moment) -> Iterator[tuple[int, int, Cell]]:
    """Every cell, with the pixels to its left and above it. A wider gap stands between two blocks of a line."""
    for index, block in enumerate(moment.blocks):
        line, column = divmod(index * len(block), _CELLS)
        for number, cell in enumerate(block, column):
            left = number * (_CELL_WIDTH + _GAP) + column // len(block) * _EDGE
            yield left, line * (_CELL_HEIGHT + _GAP), cell


def _sheet(height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (_CELLS * (_CELL_WIDTH + _GAP) + 3 * _EDGE, height), _PAPER)
    return image, ImageDraw.Draw(image)


def _frame(answers: Sequence[Answer], now: Sequence[Moment], prompt: str) -> Image.Image:
    heights = [_panel_height(answer) + _EDGE for answer in answers]
    image, pen = _sheet(_TITLE + sum(heights) + _TITLE)
    pen.text((_EDGE, 8), f"“{prompt}”", _INK, _font(14))
    top = _TITLE
    for answer, moment, height in zip(answers, now, heights, strict=True):
        _title(pen, top, answer, moment)
        for left, below, cell in _laid_out(moment):
            _cell(pen, (left, top + _TITLE + below), cell)
        top += height
    _legend(pen, top)
    return image


def _title(pen: ImageDraw.ImageDraw, top: int, answer: Answer, moment: Moment) -> None:
    pen.text((_EDGE, top + 8), answer.title, _INK, _font(14, bold=True))
    count = f"{moment.forwards} forwards of the backbone, {moment.fixed} tokens"
    if answer.mrp_forwards and moment.forwards == answer.forwards:
        count += f" ({answer.mrp_forwards} forwards of MRP in the whole answer)"
    pen.text((_EDGE + 250, top + 8), count, _INK, _font(14))


def _legend(pen: ImageDraw.ImageDraw, top: int) -> None:
    left = _EDGE
    for colour, words in LEGEND:
        pen.rectangle((left, top + 6, left + 14, top + 20), fill=colour)
        pen.text((left + 20, top + 5), words, _FAINT, _font(13))
        left += 60 + round(_font(13).getlength(words))


def _cell(pen: ImageDraw.ImageDraw, at: tuple[int, int], cell: Cell, *, numbered: bool = False) -> None:
    left, top = _EDGE + at[0], at[1]
    fill, line, ink = _looks(cell)
    pen.rectangle((left, top, left + _CELL_WIDTH - 1, top + _CELL_HEIGHT - 1), fill=fill, outline=line, width=1)
    text = cell.text if len(cell.text) <= _FITS else cell.text[: _FITS - 1] + "…"
    below = 12 if numbered and cell.when else 14
    pen.text((left + _CELL_WIDTH // 2, top + below), text, ink, _font(12), anchor="mm")
    if numbered and cell.when:
        when = " then ".join(map(str, cell.when))
        pen.text((left + _CELL_WIDTH - 3, top + _CELL_HEIGHT - 1), when, ink, _font(8), anchor="rb")


def _looks(cell: Cell) -> tuple[str, str, str]:
    if cell.state == "new":
        colour = STATES[cell.source].light
        return colour, colour, _PAPER
    if cell.state == "draft":
        return _MASKED, _DRAFT, _DRAFT
    return {"prompt": _PROMPT, "masked": _MASKED, "old": _OLD}[cell.state], _LINE, _INK


@cache
def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(folder / f"DejaVuSans{'-Bold' if bold else ''}.ttf", size)
