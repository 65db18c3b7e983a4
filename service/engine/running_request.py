"""A running request as the scheduler, the step and the engine see it. Its kinds are beside each other.

`DiffusionRequest` and `CausalRequest` decode (`decoding_request.py`), `ScoringRequest` scores. Tensors occur only as
opaque handles.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from math import isfinite
from typing import ClassVar, Literal, NamedTuple

from service.decode.block import Block
from service.decode.policy import Prediction
from service.engine.drafting.planner import RequestDrafts
from service.engine.forward.rows import Anchor, Row
from service.engine.prefix_cache import Lease
from service.engine.request import BlockEvent, FinishReason, GenerationRequest, Stats
from service.engine.request_stats import RequestStats
from service.engine.stored_blocks import StoredBlocks
from service.errors import MrpServeError, OutputsNotFinite
from service.model.config import ModelConfig

#: MRP's replays: for a mode's own tokens, or for drafts, which may be chosen from candidates
Replays = Literal["tokens", "drafts"]


class Admitted(NamedTuple):
    """What a request starts with. `lease`: its first pages; the shared ones of its prompt are written.

    `submitted`: seconds of the engine's clock. `first_line`: the first of its lines of the state table; 0: it has
    none, and no row begins ahead.
    """

    request: GenerationRequest
    model: ModelConfig
    lease: Lease
    submitted: float
    drafts: RequestDrafts
    first_line: int = 0


class RunningRequest(ABC):
    """A running request.

    `replays`: the kind of MRP's forwards if they may be replays of one graph (`forward/replays.py`), None if not.
    `grows`: whether its pages grow with its answer, and may be taken from it.
    """

    grows: ClassVar[bool] = True

    __slots__ = (
        "_block_size", "_num_prompt_blocks", "_num_unread", "blocks", "drafts", "finish_reason", "first_line",
        "lease", "replays", "request", "stats", "submitted",
    )  # fmt: skip

    def __init__(self, admitted: Admitted) -> None:
        self.request, model, self.lease, self.submitted, self.drafts, self.first_line = admitted
        lease, drafts, self._block_size = self.lease, self.drafts, model.block_size
        self.stats = RequestStats(self.request, self.submitted, lease.num_shared * self._block_size, drafts.mrp_steps)
        self.finish_reason: FinishReason | None = None
        self.replays: Replays | None = None
        self._num_unread = 0  # forwards with positions that are read, which have begun and are not read
        self.blocks = StoredBlocks(lease, uses_mrp=drafts.uses_mrp)
        self._num_prompt_blocks = self.blocks.num_prefill

    @abstractmethod
    def start(self) -> None:
        """Begins to decode, once the weights that answer are known."""

    # The blocks of its prompt, and those that are stored again

    @property
    def num_prompt_rows(self) -> int:
        unwritten = self.blocks.unwritten
        return max(0, self.blocks.num_prefill - unwritten[0].index) if unwritten else 0

    @property
    def stores_next(self) -> bool:
        """Whether the next block to store is the first one behind the shared pages."""
        unwritten = self.blocks.unwritten
        return bool(unwritten) and unwritten[0].index == self.lease.num_shared

    def skip_stored(self, count: int) -> None:
        """The next blocks need no rows: another request has stored them."""
        self.blocks.skip(count)
        self.stats.count_cached(count * self._block_size)

    # Its pages

    def lose_pages(self) -> None:
        """Its pages go to other requests, while none of its forwards is under way. All else stays."""
        self.stats.preempt(in_prompt=self.num_prompt_rows > 0)
        self.blocks.for_mrp.clear()  # their forwards' hidden states need memory

    def take_pages(self) -> int:
        """It has pages again, the leading ones with their blocks. -> the number of blocks to be stored once more."""
        return self.blocks.restore()

    # Its next rows

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of its next rows, at most."""

    @property
    def waits(self) -> bool:
        """Whether its next rows depend on predictions that are not read."""
        return self._num_unread > 0

    @abstractmethod
    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        """Rows for the next backbone forward: at most `budget`, and at most `prompt_budget` of the prompt.

        Blocks to store come first. The others follow if all of it fits. The caller must call `begin`.
        """

    def _rows_to_store(self, budget: int, prompt_budget: int | None) -> list[Row]:
        unwritten = self.blocks.unwritten
        if prompt_budget is not None and prompt_budget < self.num_prompt_rows:
            budget = min(budget, prompt_budget)
        return list(islice(unwritten, budget))

    def _stored_row(self, index: int) -> Row:
        """The row of a block that is stored already. It is computed again, and written nowhere."""
        return Row(Block(self.blocks.history[index]), index, self.lease.pages, writes_kv=False, kind="prefill")

    def expected_gains(self, rows: list[Row]) -> list[float]:  # noqa: ARG002 - by default no row may be left out
        """The expected gains, in tokens, of the drafts, which are the last of these rows and may be left out."""
        return []

    def next_refinement(self) -> list[Row]:
        """Rows for the next forward of MRP in this step. The caller must call `begin`."""
        return []

    def next_refinement_ahead(self) -> list[Row]:
        """Rows for the next forward of MRP in this step, before the last forward is read."""
        return []

    @property
    def num_replays(self) -> int:
        """The forwards of MRP that may follow the next one before it is read."""
        return 0

    def wait_for_results(self) -> bool:
        """The device has no replays. -> whether MRP's next forward then waits for results. From now on it does."""
        return False

    # Its forwards

    def begin(self, rows: list[Row], anchors: Sequence[Anchor]) -> None:
        """A forward over these rows has begun. `anchors`: theirs."""
        self.blocks.begin(rows, anchors)
        self._num_unread += rows[-1].sampling is not None

    @abstractmethod
    def receive_predictions(self, rows: list[Row], predictions: Sequence[Prediction]) -> None:
        """A forward of the backbone is read."""

    def needs_refinement(self, rows: list[Row]) -> bool:  # noqa: ARG002 - ahead alone more may begin than is needed
        """Whether it needs the predictions of a forward of MRP, which has begun over these rows."""
        return True

    def receive_refinement(self, rows: list[Row], predictions: Sequence[Prediction]) -> None:  # noqa: B027
        """A forward of MRP is read. `predictions`: none if no request of the forward needs them."""

    # Its end

    def expire(self, reason: FinishReason) -> None:
        """Ends the request now, unless it has already ended. Its last event has the tokens that are final."""
        if self.finish_reason is None:
            self._end(reason)

    @abstractmethod
    def _end(self, reason: FinishReason) -> None: ...

    def fail(self, error: MrpServeError) -> None:
        """Ends the request with an error. Its current block and its unshared pages are lost."""
        self.blocks.clear()
        self.finish_reason = "abort"
        event = BlockEvent(self.request.request_id, self._num_blocks, (), Stats(), "abort", error=error)
        self.stats.add_event(event)

    @property
    def _num_blocks(self) -> int:
        """The blocks of its answer that have ended."""
        return 0

    def release(self) -> None:  # noqa: B027 - most kinds have none
        """Drops its reference cycles after its end. Without this only a garbage collection would free it."""


def check_finite(predictions: Iterable[Prediction]) -> None:
    """OutputsNotFinite if a confidence is not. NaN or infinity among a position's logits makes its confidence NaN.

    Only what a policy reads is checked: a row ahead may have read pages or numbers that an earlier forward left.
    """
    total = 0.0
    for prediction in predictions:
        total += sum(prediction.confidences)
        for pick in prediction.rescored:
            total += pick.confidence
    if not isfinite(total):
        raise OutputsNotFinite(
            "the model's outputs for this request are not finite: weights have NaN, or overflow in their type"
        )
