"""Users in a closed loop: whoever has an answer asks again after a pause."""

import heapq
import random

from benchmarks.simulated.worlds import Traffic
from service.decode.mode import DecodingMode
from service.engine import GenerationRequest
from service.engine.request import MeasuredMode, Sharing

#: the tokens of prompts
_TOKENS = range(10, 200)


class Users:
    """Requests by their numbers: the same in every play, whatever the plan. Times are in seconds of the clock."""

    def __init__(self, traffic: Traffic, mode: DecodingMode, plans: tuple[MeasuredMode, ...] = ()) -> None:
        self._traffic, self._mode, self._plans = traffic, mode, plans
        self._users = self._asking = 0  # and the users that wait for an answer, or soon ask
        self._number = 0
        self._due: list[tuple[float, int]] = []

    def set_number(self, users: int, now: float) -> None:
        """From now on there are so many. If they were more, some do not ask again."""
        self._users = users
        self._ask(now)

    def answered(self, now: float) -> None:
        self._asking -= 1
        self._ask(now + 1e-3 * self._traffic.gap)

    def _ask(self, seconds: float) -> None:
        for _ in range(self._users - self._asking):
            heapq.heappush(self._due, (seconds, self._number))
            self._asking, self._number = self._asking + 1, self._number + 1

    @property
    def next_request(self) -> float:
        return self._due[0][0]

    def requests(self, now: float) -> list[GenerationRequest]:
        """The requests that are due."""
        requests = list[GenerationRequest]()
        while self._due and self._due[0][0] <= now:
            requests.append(self._request(heapq.heappop(self._due)[1]))
        return requests

    def _request(self, number: int) -> GenerationRequest:
        traffic, rng = self._traffic, random.Random(number * 7919)
        prompt = [rng.choice(_TOKENS) for _ in range(rng.randint(*traffic.prompt))]
        new_tokens = rng.randint(*traffic.new_tokens)
        if traffic.prefixes:
            shared = random.Random(-1 - rng.randrange(traffic.prefixes))
            prompt = [*(shared.choice(_TOKENS) for _ in range(traffic.prefix_tokens)), *prompt]
        mode, plans = self._mode, self._plans
        if traffic.beside is not None and number % 2 == 0:
            mode, plans = traffic.beside, ()
        tenant = 1 + number // 2 % (traffic.tenants - 1) if number % 2 and traffic.tenants > 1 else 0
        sharing, tokens = Sharing(str(tenant)), tuple(prompt)
        return GenerationRequest(str(number), tokens, mode, max_new_tokens=new_tokens, plans=plans, sharing=sharing)
