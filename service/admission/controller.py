"""The admission controller accepts or refuses requests and gives accepted ones a slot at a replica."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from service.admission.charge import AnswerUsage, TokenCharge, prompt_estimate
from service.admission.keys import ApiKey, RateLimits
from service.admission.slots import Slots, Waiter
from service.admission.throughput import ReplicaDemand, Throughput
from service.errors import InvalidRequest, MrpServeError, PromptTooLong, QueueFull
from service.fair_queue import FairQueue, Ticket
from service.messages.replica_status import ModelCard
from service.messages.wire import ReplicaRequest, too_late
from service.settings.settings import Settings

#: the maximum of wanted replicas, for each that the settings allow: beyond it, a number says no more
_MAX_WANTED = 4.0


class AdmissionController:
    """Admission at one ingress, with its share of slots and limits. `tenants`: the number of API keys.

    `limits`: the limits of the API keys. The caller counts a request there when its head has come. `slots`,
    `throughput`, `demand`: its measurements.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic, *, tenants: int = 1) -> None:
        self._clock, self._share = clock, settings.per_ingress
        self._max_replicas = settings.max_num_replicas
        self._ingresses, self._replicas, self._halted = settings.api_server_count, 1.0, False
        self.throughput = Throughput(clock)
        self._queue: FairQueue[Waiter] = FairQueue()
        self.slots = Slots(self._queue, self.throughput, shared=tenants > 1)
        self._max_queue_s, self._max_waiting = settings.max_queue_s, settings.per_ingress(settings.max_waiting)
        self._last_retry: dict[str, float] = {}  # tenant -> time at which its last refused request may come back
        self.limits = RateLimits(clock, settings.api_server_count)
        self.demand = ReplicaDemand(settings.slots, clock)
        self._block_size, self._max_model_len = 1, 0
        self._usages: set[AnswerUsage] = set()

    def serves(self, card: ModelCard) -> None:
        self._block_size, self._max_model_len = card.block_size, card.max_model_len
        self.slots.resize(self._share(card.slots))
        self.demand.slots = card.replica_slots
        self._replicas = max(1.0, card.slots / card.replica_slots)

    def set_tenants(self, tenants: int) -> None:
        """The number of API keys from now on."""
        self.slots.shared = tenants > 1

    def set_halted(self, halted: bool) -> None:
        """Whether the replicas are paused or asleep from now on. Requests wait, which no further replica would help."""
        self._halted = halted
        self.throughput.set_halted(halted)

    def reject_waiting(self, error: MrpServeError) -> None:
        self.slots.reject_waiting(error)

    def admit(self, key: ApiKey, requests: Sequence[ReplicaRequest]) -> TokenCharge:
        """Accepts a request: the charge of its answers. PromptTooLong, RateLimited or QueueFull if it is refused."""
        for request in requests:
            self._check_length(request)
        self.limits.check_tokens(key, sum(self._tokens(request, prompt_estimate(request)) for request in requests))
        blocks = sum(self._blocks(request) for request in requests)
        self._check_queue(replace(self._ticket(requests[0]), cost=blocks))
        return TokenCharge(partial(self.limits.consume_tokens, key.name))

    @asynccontextmanager
    async def slot(self, request: ReplicaRequest, charge: TokenCharge) -> AsyncIterator[AnswerUsage]:
        """A slot for the context, whose caller calls `charge.fail`. DeadlineExceeded if the time ends before."""
        blocks, prompt, whole = self._blocks(request), prompt_estimate(request), request.stream_interval > 1
        usage = AnswerUsage(blocks, prompt, self._block_size, self.throughput, whole=whole)
        charge.open(usage, self._tokens(request, usage.prompt))
        self._usages.add(usage)
        arrived = self.demand.arrived(usage.requested)
        try:
            try:
                await self.slots.enter(self._ticket(request), request.arrived + request.timeout_s - self._clock())
            except TimeoutError:
                raise too_late(request) from None
            usage.counted = self.throughput.moment()
            try:
                yield usage
            finally:
                self.slots.leave(request.sharing.tenant)
        except InvalidRequest:
            if not usage.decoded:
                self.demand.refused(usage.requested, arrived)
            raise
        finally:
            self._usages.remove(usage)
            charge.close(usage)

    def _check_length(self, request: ReplicaRequest) -> None:
        """PromptTooLong over the model's length. Such a request would be demand until a replica refuses it."""
        prompt, longest = len(request.token_ids or ()), self._max_model_len
        shortest = 1 if request.shorten else request.max_new_tokens
        if prompt + shortest <= longest or request.scoring is not None:
            return
        excess = f"max_new_tokens is {shortest}"
        if prompt:
            excess = f"{prompt} prompt tokens and max_new_tokens {shortest} are {prompt + shortest} tokens"
        raise PromptTooLong.over(longest, excess, param="max_new_tokens")

    def _check_queue(self, ticket: Ticket) -> None:
        """QueueFull if the request may not join the queue. Its wait is not known while the rate is not.

        A tenant's refused requests get ascending Retry-After times.
        """
        rate, ratio, share = self.throughput.rate, self.throughput.ratio, self._queue.share(ticket)
        limit, waiting = self._max_waiting, len(self._queue)
        if waiting >= limit and self._queue.waiting(ticket.tenant) >= limit * share:
            refusal = f"{waiting} requests are waiting, allowed are {limit}"
        elif rate is not None and (wait_s := self._queue.ahead(ticket) * ratio / rate) >= self._max_queue_s:
            refusal = f"the waiting work takes about {wait_s:.0f} s, allowed are {self._max_queue_s:g} s"
        else:
            return
        now = self._clock()
        seconds = self.throughput.guessed_s if rate is None else ticket.cost * ratio / (rate * share)
        retry = max(now, self._last_retry.get(ticket.tenant, now)) + seconds
        self._last_retry[ticket.tenant] = retry
        raise QueueFull(refusal, retry_after=retry - now)

    @property
    def blocks_left(self) -> float:
        """The estimated number of blocks left to decode, for waiting and running requests together."""
        ratio = self.throughput.ratio
        return sum(max(0.0, usage.requested * ratio - usage.decoded) for usage in self._usages)

    @property
    def blocks_per_second(self) -> float:
        return self.throughput.rate or 0.0

    @property
    def load(self) -> float:
        """Requests at a replica if one more comes now, where all ingresses have equally many."""
        return (len(self._usages) * self._ingresses + 1) / self._replicas

    @property
    def replicas_wanted(self) -> float:
        """The number of replicas that this ingress's requests need, a fraction. It stays while replicas are halted."""
        if self._halted and self.slots.total:
            return self._replicas / self._ingresses
        ratio = self.throughput.ratio
        waiting = sum(usage.requested for usage in self._usages if usage.counted is None) * ratio
        demand = self.demand.wanted(
            ratio,
            in_flight=len(self._usages),
            running=self.slots.used,
            waiting_blocks=waiting,
            rate_per_slot=self.throughput.rate_per_slot,
        )
        return min(demand, _MAX_WANTED * self._max_replicas)

    def _ticket(self, request: ReplicaRequest) -> Ticket:
        sharing, blocks = request.sharing, self._blocks(request)
        return Ticket(request.arrived, sharing.tenant, sharing.tenant_share, sharing.priority, blocks)

    def _blocks(self, request: ReplicaRequest) -> int:
        return -(-request.max_new_tokens // self._block_size)

    def _tokens(self, request: ReplicaRequest, prompt: float) -> float:
        """The estimate that a key is charged first: the prompt, and the number of tokens likely to be decoded."""
        return prompt + request.max_new_tokens * self.throughput.ratio
