"""The admission controller accepts or refuses requests and gives accepted ones a slot at a replica.

`admit` decides once per HTTP request, without waiting. Each answer of the request then waits in `slot`. Finished
answers update the measured throughput. The controller combines the other parts of this package.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from service.admission.charge import AnswerUsage, TokenCharge, prompt_estimate
from service.admission.demand import Load, ReplicaDemand
from service.admission.keys import ApiKey
from service.admission.limits import RateLimits
from service.admission.queue_policy import QueueLimits, QueuePolicy
from service.admission.slots import Slots, Waiter
from service.admission.throughput import Throughput
from service.errors import InvalidRequest, MrpServeError, PromptTooLong
from service.fair_queue import FairQueue, Ticket
from service.settings import Settings
from service.wire import ModelCard, Work, too_late


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """One HTTP request: its API key, client address, path and body. They identify a request that is sent again."""

    key: ApiKey
    client: str
    path: str
    body: bytes = field(repr=False)

    def digest(self) -> bytes:
        """A hash of the request. Equal requests of one API key (without keys: of one address) have the same hash."""
        head = f"{self.key.name if self.key.digest else self.client}\n{self.path}\n".encode()
        return hashlib.blake2b(head + self.body, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Admission:
    """An accepted request: its works, which name the API key as their tenant, and the charge of their answers."""

    works: list[Work]
    charge: TokenCharge


class AdmissionController:
    """Admission at one ingress, with its share of slots and limits.

    An ingress does not know the requests of other ingresses. `clock`: the clock of `Arrival`, in seconds.
    `tenants`: the number of API keys. Of several, none gets all slots.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic, *, tenants: int = 1) -> None:
        self._clock, self._share = clock, settings.share
        self._ingresses, self._replicas = settings.num_ingresses, 1.0
        self._throughput = Throughput(clock)
        self._queue: FairQueue[Waiter] = FairQueue(settings.priority_aging_s)
        self._slots = Slots(self._queue, self._throughput, shared=tenants > 1)
        limits = QueueLimits(settings.max_queue_s, settings.share(settings.max_waiting))
        self._policy = QueuePolicy(self._queue, self._throughput, limits, clock)
        self._limits = RateLimits(clock, settings.num_ingresses)
        self._demand = ReplicaDemand(settings.slots, settings.target_queue_s, clock)
        self._keys_share = settings.share_prefixes_between_keys
        self._block_size, self._max_model_len = 1, 0
        self._usages: set[AnswerUsage] = set()

    def serves(self, card: ModelCard) -> None:
        """Sets the block size, the longest request and the number of slots from the current card."""
        self._block_size, self._max_model_len = card.block_size, card.max_model_len
        self._slots.resize(self._share(card.places))
        self._demand.slots = card.replica_places
        self._replicas = max(1.0, card.places / card.replica_places)

    def reject_all(self, error: MrpServeError) -> None:
        """Ends all waiting requests with `error` if there are no slots."""
        self._slots.reject_all(error)

    def check_requests(self, key: ApiKey) -> None:
        """RateLimited if the key has no request left now. Its tokens are checked when the request's own are known."""
        self._limits.check(key)

    def refused(self, key: ApiKey) -> None:
        """Counts a request whose body was refused (413, 422), which `admit` never sees."""
        self._limits.count_request(key)

    def admit(self, request: IncomingRequest, works: Sequence[Work]) -> Admission:
        """Accepts a request. PromptTooLong, RateLimited or QueueFull if it is refused."""
        key = request.key
        works = [self._owned(self._fitting(work), key) for work in works]
        self._limits.check(key, sum(self._tokens(work, prompt_estimate(work)) for work in works))
        blocks = sum(self._blocks(work) for work in works)
        self._policy.check(replace(self._ticket(works[0]), cost=blocks), request.digest)
        self._limits.count_request(key)
        return Admission(works, TokenCharge(partial(self._limits.take_tokens, key.name)))

    @asynccontextmanager
    async def slot(
        self, work: Work, charge: TokenCharge, on_wait: Callable[[], None] = lambda: None
    ) -> AsyncIterator[AnswerUsage]:
        """A slot at a replica for the duration of the context. DeadlineExceeded if the work's time ends before.

        `on_wait` is called if no slot is free. The caller calls `charge.fail` with the error if the request fails.
        """
        usage = AnswerUsage(self._blocks(work), prompt_estimate(work), self._block_size, self._throughput)
        charge.open(usage, self._tokens(work, usage.prompt))
        self._usages.add(usage)
        arrived = self._demand.arrived(usage.asked)
        try:
            await self._enter(work, on_wait)
            usage.begun = self._throughput.moment()
            try:
                yield usage
            finally:
                self._slots.leave(work.tenant)
        except InvalidRequest:
            if not usage.decoded:
                self._demand.refused(usage.asked, arrived)
            raise
        finally:
            self._usages.remove(usage)
            charge.close(usage)

    def _fitting(self, work: Work) -> Work:
        """The work if the model's length allows it. A longer one would count as demand until a replica refuses it."""
        prompt, most = len(work.token_ids or ()), self._max_model_len
        if prompt + work.max_new_tokens <= most or work.scoring is not None:
            return work
        if work.shorten:
            return structs.replace(work, max_new_tokens=max(1, most - prompt))
        raise PromptTooLong(
            f"{prompt} prompt tokens and max_new_tokens {work.max_new_tokens} are "
            f"{prompt + work.max_new_tokens} tokens, allowed are {most}"
            if work.token_ids is not None
            else f"max_new_tokens is {work.max_new_tokens}, prompt and answer may have {most} tokens together",
            param="max_new_tokens",
        )

    def _owned(self, work: Work, key: ApiKey) -> Work:
        """The work with its key as tenant. Its cached prefix belongs to that key alone, unless keys share prefixes."""
        salt = work.cache_salt if self._keys_share else key.salted(work.cache_salt)
        if (work.tenant, work.weight, work.cache_salt) == (key.name, key.weight, salt):  # no key is configured
            return work
        return structs.replace(work, tenant=key.name, weight=key.weight, cache_salt=salt)

    async def _enter(self, work: Work, on_wait: Callable[[], None]) -> None:
        try:
            await self._slots.enter(self._ticket(work), work.arrived.at + work.timeout_s - self._clock(), on_wait)
        except TimeoutError:
            raise too_late(work) from None

    @property
    def blocks_left(self) -> float:
        """The estimated number of blocks left to decode, for waiting and running requests together."""
        ratio = self._throughput.ratio
        return sum(max(0.0, usage.asked * ratio - usage.decoded) for usage in self._usages)

    @property
    def blocks_per_second(self) -> float:
        """The measured rate; 0 until it is known."""
        return self._throughput.rate or 0.0

    @property
    def somebody_waits(self) -> bool:
        """Whether a request waits for a slot."""
        return len(self._queue) > 0

    @property
    def load(self) -> float:
        """Requests at a replica, running and waiting, if one more comes now.

        Other ingresses are taken to have as many requests as this one.
        """
        return (len(self._usages) * self._ingresses + 1) / self._replicas

    @property
    def replicas_wanted(self) -> float:
        """The number of replicas that this ingress's requests need, as a fraction."""
        ratio = self._throughput.ratio
        waiting = sum(usage.asked for usage in self._usages if usage.begun is None) * ratio
        load = Load(len(self._usages), self._slots.used, waiting, self._throughput.rate_per_slot)
        return self._demand.wanted(load, ratio)

    def _ticket(self, work: Work) -> Ticket:
        return Ticket(work.arrived.at, work.tenant, work.weight, work.priority, self._blocks(work))

    def _blocks(self, work: Work) -> int:
        return -(-work.max_new_tokens // self._block_size)

    def _tokens(self, work: Work, prompt: float) -> float:
        """The estimate that a key is charged first: the prompt, and the number of tokens likely to be decoded."""
        return prompt + work.max_new_tokens * self._throughput.ratio
