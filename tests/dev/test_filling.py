"""The moments of an answer are those that its steps tell of."""

from dev.pictures.filling import Answer, at, moments
from service.decode.block import Pick, Step

#: block 0: one prompt position, a denoise, a verification of two drafts of which one holds; block 1: remasked by MRP
STEPS = (
    (
        Step("denoise", (Pick(1, 11, 0.9),)),
        Step("verify", (Pick(2, 12, 0.8), Pick(3, 14, 0.7)), drafted=(Pick(2, 12, 0.8), Pick(3, 13, 0.6)), accepted=1),
    ),
    (
        Step("denoise", tuple(Pick(position, 20 + position, 0.5) for position in range(4))),
        Step("mrp", remasked=(2,)),
        Step("denoise", (Pick(2, 29, 0.9),)),
    ),
)
ANSWER = Answer("made up", STEPS, 4, 1, 7)


def written(moment):
    """A block a line: the text of a cell with the first letter of its state."""
    return [" ".join(f"{cell.state[0]}{cell.text}" for cell in block) for block in moment.blocks]


def test_every_step_is_a_moment_and_drafts_are_one_before():
    film = moments(ANSWER, str)
    assert [written(moment)[0] for moment in film[:4]] == ["p m m m", "p n11 m m", "p o11 d12 d13", "p o11 n12 n14"]
    assert [written(moment)[1] for moment in film[4:]] == ["n20 n21 n22 n23", "o20 o21 m o23", "o20 o21 n29 o23"]
    assert [moment.forwards for moment in film] == [0, 1, 1, 2, 3, 3, 4]
    assert [moment.fixed for moment in film] == [0, 1, 1, 3, 7, 6, 7]
    assert film[-1].forwards == ANSWER.forwards


def test_cells_move_with_their_tokens():
    steps = (
        Step("denoise", tuple(Pick(position, 11 + position, 0.5) for position in (1, 2, 3))),
        Step("denoise", (Pick(3, 19, 0.5),), remasked=(1,), moved=(0, 2, 3, -1)),
    )
    film = moments(Answer("made up", (steps,), 4, 1, 3), str)
    assert [written(moment)[0] for moment in film] == ["p m m m", "p n12 n13 n14", "p o13 o14 n19"]
    assert [cell.when for cell in film[-1].blocks[0]] == [(), (1,), (1,), (2,)]


def test_answers_are_shown_at_the_same_number_of_forwards():
    film = moments(ANSWER, str)
    assert [film.index(at(film, forwards)) for forwards in range(5)] == [0, 1, 3, 4, 6]
    assert [film.index(at(film, forwards, drafted=True)) for forwards in range(5)] == [0, 2, 3, 5, 6]
    assert at(film, 9) is film[-1]
