"""Stop texts found letter by letter are those that a search of the whole text finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.detokenizer import StopMatcher

#: two letters, so that texts overlap with themselves and with each other
FEW = st.text("ab", min_size=1, max_size=6)


def first(stops: list[str], text: str) -> tuple[int, int] | None:
    """Where the first complete stop text ends, and its length, of several the longest."""
    ends = [(text.find(stop) + len(stop), len(stop)) for stop in stops if stop in text]
    return min(ends, key=lambda end: (end[0], -end[1])) if ends else None


def longest_beginning(stops: list[str], text: str) -> int:
    sizes = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max(sizes, default=0)


@settings(max_examples=150)
@given(st.lists(FEW, max_size=4), st.text("abc", max_size=40))
def test_the_first_complete_one_of_any_texts(stops: list[str], text: str) -> None:
    automaton, wanted = StopMatcher(stops), first(stops, text)
    for count, letter in enumerate(text, 1):
        length = automaton.step(letter)
        if wanted and count == wanted[0]:
            assert length == wanted[1]
            return
        assert length == 0
        assert automaton.pending == longest_beginning(stops, text[:count])
    assert wanted is None


class CountedText(str):
    """A text that counts how often one of its letters is looked at."""

    __slots__ = ("looks",)
    looks: int

    def __getitem__(self, index: object) -> str:
        self.looks += 1
        return super().__getitem__(index)  # type: ignore[index]


def test_a_long_stop_text_that_an_answer_follows_far_costs_no_more_than_the_answer() -> None:
    """Sixty thousand letters, followed for four thousand and then missed, again and again."""
    stop = CountedText("ab" * 30_000)
    stop.looks = 0
    text = ("ab" * 2_000 + "c") * 4
    automaton = StopMatcher([stop])
    assert not any(automaton.step(letter) for letter in text)
    assert automaton.pending == 0
    assert stop.looks < 6 * len(text)
