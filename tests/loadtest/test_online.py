"""What `loadtest.online` counts and concludes."""

import json

import pytest

from loadtest.online import Answer, Clients, conclude, row_of


def clients(*answers, failed=()):
    group = Clients(None, [{"prompt": "a"}], 8)
    group.answers += answers
    group.failed.update(failed)
    return group


def answer(prompt, *tokens, ended=1.0, accepted=1, version=0):
    return Answer(prompt, ended, tokens, accepted, forwards=4, version=version)


def test_a_row_has_accepted_drafts_a_forward_by_version():
    answers = [answer(0, 1, ended=11.0), answer(1, 1, accepted=3, version=2), answer(1, 1, ended=12.0, version=2)]
    assert row_of(answers, began=10.0) == {
        "accepted": 0.417,
        "answers_per_s": 1.5,
        "by_version": {0: (1, 0.25), 2: (2, 0.5)},
    }


def test_equal_answers_pass(capsys):
    learning = clients(answer(0, 5, 6), answer(1, 7), answer(0, 5, 6))
    assert conclude(learning, clients(answer(1, 7), answer(0, 5, 6)), {"pairs": [(19.0, 20.0)]}) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["answers"], result["differing"], result["median_ratio"]) == (3, 0, 0.95)


@pytest.mark.parametrize(
    ("static", "why"),
    [
        (clients(answer(0, 5, 7)), "1 answers differ"),
        (clients(), "1 answers differ"),
        (clients(answer(0, 5, 6), failed=["500 lost"]), "500 lost"),
    ],
)
def test_a_differing_a_lacking_and_a_failed_answer_break_it(capsys, static, why):
    assert conclude(clients(answer(0, 5, 6)), static, {"pairs": []}) == 1
    assert json.loads(capsys.readouterr().out)["broken"] == [why]
