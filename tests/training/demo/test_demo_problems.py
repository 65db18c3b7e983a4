"""The demo's problems: the split, the generator's agreement with the checker, what the checker refuses."""

import random
import subprocess
import sys

import pytest

from service.demo import check, heldout_problems, is_heldout
from training.demo import tasks

STORY = "Tom has 5 apples, gets 3, loses 2."
RIGHT = "[x] 5 + 3 makes 8 [/x] Now, call it k: x - 2, so k is now 6. So Tom has 6 apples."
CODE = "Write code: add 3, then times 2."


def test_training_never_sees_a_heldout_problem():
    rng = random.Random(0)
    trained = {tasks.draw(rng).prompt for _ in range(8000)}
    heldout = {problem.prompt for problem in heldout_problems()}
    assert len(heldout) >= 1000
    assert not trained & heldout
    assert all(is_heldout(prompt) for prompt in heldout)
    assert not any(is_heldout(prompt) for prompt in trained)


def test_every_generated_answer_is_accepted():
    rng = random.Random(1)
    for number in range(1000):
        example = tasks.draw(rng, heldout=number % 2 == 0)
        assert check(example.prompt, example.answer), example


def test_other_letters_digits_or_signs_are_refused():
    rng = random.Random(2)
    refused = total = 0
    for _ in range(1000):
        example = tasks.draw(rng)
        place = rng.randrange(len(example.answer))
        changed = example.answer[:place] + rng.choice("xyk0358+-=.,[(Tb ") + example.answer[place + 1 :]
        if changed != example.answer:
            total += 1
            refused += not check(example.prompt, changed)
    # A few changes give another right answer: a call `k` for `x` that is used once, `5` for `x`.
    assert refused / total > 0.99


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (STORY, RIGHT.replace("[/x]", "[/y]")),  # a letter that does not close what was opened
        (STORY, RIGHT.replace("[/x]", "[/x>")),  # brackets that do not match
        (STORY, RIGHT.replace("call it k", "call it x").replace("so k", "so x")),  # a letter used twice
        (STORY, RIGHT.replace("x - 2", "w - 2")),  # a letter never introduced
        (STORY, RIGHT.replace("x - 2, so k is now 6", "x - 2, so k is now 7")),  # arithmetic
        (STORY, RIGHT.replace("Tom has 6", "Ann has 6")),  # another person
        (STORY, RIGHT.replace("6 apples", "6 pens")),  # other things
        (STORY, RIGHT.replace("Now, call", "Now, Call")),  # a capital in the middle
        (STORY, RIGHT + " "),  # text behind the end
        (STORY, RIGHT.split(" Now", maxsplit=1)[0] + " So Tom has 8 apples."),  # a step missing
        (STORY, ""),
        (CODE, "def f(x): return (x * 3) + 2"),  # another order of operations
        (CODE, "def f(x): y = x + 3; return x * 2"),  # the wrong variable
        (CODE, "def f(x): x = x + 3; return x * 2"),  # not in the grammar
        (CODE, "def f(x): return (x + 3) * 2 # call g(x)"),  # another function
    ],
)
def test_incoherent_answers_are_refused(prompt, answer):
    assert check(STORY, RIGHT)
    assert check(CODE, "def f(x): return (x + 3) * 2 # call f(x)")
    assert not check(prompt, answer)


def test_foreign_text_is_no_problem_of_the_demo():
    with pytest.raises(ValueError, match="'How are you' is not a problem"):
        check("How are you", "fine")


def test_asking_for_problems():
    assert heldout_problems(50, seed=3) == heldout_problems(50, seed=3)
    assert heldout_problems(50, seed=3) != heldout_problems(50, seed=4)
    with pytest.raises(ValueError, match="allowed are 1 to 1200"):
        heldout_problems(100_000)


def test_the_demo_package_needs_no_torch():
    code = "import sys, service.demo; service.demo.heldout_problems(5); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
