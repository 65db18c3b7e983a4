"""A forward that has begun: what later forwards may already read of it, and its results."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from service.decode.policy import Prediction
from service.engine.forward.rows import Anchor

_T_co = TypeVar("_T_co", bound=Prediction | None, covariant=True)


class Pending(Struct, Generic[_T_co], frozen=True):
    """A forward that has begun. Called, it waits until the forward is done, and returns a result for every row.

    `anchors`: those of its rows, for later forwards; None for a row that had no memory.
    """

    anchors: Sequence[Anchor | None]
    results: Callable[[], Sequence[_T_co]]

    def __call__(self) -> Sequence[_T_co]:
        return self.results()

    def of_rows(self, indices: Sequence[int]) -> Self:
        """The same forward with some of its rows."""

        def results() -> list[_T_co]:
            of_all = self.results()
            return [of_all[index] for index in indices]

        return replace(self, anchors=[self.anchors[index] for index in indices], results=results)

    def sorted_by(self, order: Sequence[int]) -> Self:
        """The same forward with its rows in another order. `order`: the new index of each row."""
        anchors = [anchor for _, anchor in sorted(zip(order, self.anchors, strict=True), key=itemgetter(0))]

        def results() -> list[_T_co]:
            return [result for _, result in sorted(zip(order, self.results(), strict=True), key=itemgetter(0))]

        return replace(self, anchors=anchors, results=results)


def done(results: Sequence[_T_co]) -> Pending[_T_co]:
    """A forward that is done."""
    return Pending([None if result is None else result.handle for result in results], lambda: results)
