"""The demo's problems: the split, the generator's agreement with the checker, what the checker refuses."""

import random

import pytest

from service.demo import check, heldout_problems
from training.demo.tasks import answer, draw, is_heldout

STORY = "Tom has 5 apples, gets 3, loses 2, loses 4."
RIGHT = "Lines: 2. [x] 3 and 5 makes 8 [/x]; then k = 4 from 6, so 2, 6 is x - 2. So Tom has 2 apples."
FORM = "Form: Ben has 9 cards, loses 8."
FILLED = "(now) now 1 as 9 - 8; name Ben; cards."
CODE = "Write code in k: 3 to 6."
DOUBLED = "def mul(k): y = k * 2; return y # 3 * 2 = 6"


def test_training_never_sees_a_heldout_problem():
    rng = random.Random(0)
    trained = {draw(rng).prompt for _ in range(8000)}
    heldout = {problem.prompt for problem in heldout_problems()}
    assert len(heldout) >= 1000
    assert not trained & heldout
    assert all(is_heldout(prompt) for prompt in heldout)
    assert not any(is_heldout(prompt) for prompt in trained)


def test_every_generated_answer_is_accepted():
    rng = random.Random(1)
    for _ in range(2000):
        example = draw(rng)
        assert check(example.prompt, example.answer), example


def test_an_answer_to_another_problem_or_with_another_sign_is_refused():
    rng = random.Random(2)
    refused = total = 0
    for _ in range(1000):
        example = draw(rng)
        index = rng.randrange(len(example.answer))
        changed = example.answer[:index] + rng.choice("xyk0358+-=.,;[(Tb <>") + example.answer[index + 1 :]
        if changed != example.answer:
            total += 1
            refused += not check(example.prompt, changed)
    # A few changes give another right answer: another letter that is used once, a letter for its number.
    assert refused / total > 0.99


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (STORY, RIGHT),
        (STORY, "OK so n is 6 since 8 - 2. Call 4 from n x, thus x = 2. {2}"),
        (FORM, FILLED),
        (CODE, DOUBLED),
        (CODE, "def up(k): return k + 3"),
        (CODE, "flip = lambda k: 9 - k"),
    ],
)
def test_right_answers_are_accepted(prompt, answer):
    assert check(prompt, answer)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (STORY, RIGHT.replace("Lines: 2", "Lines: 3")),  # a plan with another number of lines
        (STORY, RIGHT.replace("; then k", ". then k")),  # a sentence without a capital
        (STORY, RIGHT.replace("[/x]", "[/k]")),  # a letter that does not close what was opened
        (STORY, RIGHT.replace("k = 4", "x = 4")),  # a letter used twice
        (STORY, RIGHT.replace("from 6", "from 7").replace("7, so 2, 6", "7, so 2, 7")),  # arithmetic
        (STORY, RIGHT.replace("so 2", "so 3")),  # a result unlike its sum
        (STORY, RIGHT.replace("3 and 5", "3 and 3")),  # the same number twice
        (STORY, RIGHT + " "),  # text behind the end
        (STORY, RIGHT.split("; then", maxsplit=1)[0] + ". So Tom has 2 apples."),  # events missing
        (STORY, ""),
        (FORM, FILLED.replace("(now)", "(name)")),  # a header unlike the first field
        (CODE, DOUBLED.replace("mul", "add")),  # a name unlike the body
        (CODE, DOUBLED.replace("k * 2", "y * 2")),  # the wrong variable
        (CODE, "def mul(k): k = k * 2; return k"),  # not in the grammar
    ],
)
def test_incoherent_answers_are_refused(prompt, answer):
    assert not check(prompt, answer)


@pytest.mark.parametrize("prompt", ["How are you", "Write code in z: 3 to 6."])
def test_foreign_text_is_no_problem_of_the_demo(prompt):
    with pytest.raises(ValueError, match="is not a problem"):
        check(prompt, "fine")
    with pytest.raises(ValueError, match="is not a problem"):
        answer(random.Random(0), prompt)


def test_asking_for_problems():
    assert heldout_problems(50, seed=3) == heldout_problems(50, seed=3)
    assert heldout_problems(50, seed=3) != heldout_problems(50, seed=4)
    with pytest.raises(ValueError, match="allowed are 1 to 1200"):
        heldout_problems(100_000)
