"""The requests that a replica has finished lately, if MRP learns from them. In memory only."""

from collections import deque

from service.messages.finished import FinishedRequest

#: tokens that are kept at most; a trainer takes them every second
_MOST_TOKENS = 65536


class RecentRequests:
    """Finished requests that nobody has taken yet, within a number of tokens: the oldest are dropped."""

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most_tokens, self._num_tokens = most_tokens, 0
        self._requests = deque[FinishedRequest]()

    def add(self, request: FinishedRequest) -> None:
        self._requests.append(request)
        self._num_tokens += len(request.token_ids)
        while self._num_tokens > self._most_tokens:
            self._num_tokens -= len(self._requests.popleft().token_ids)

    def take(self) -> tuple[FinishedRequest, ...]:
        """All of them. They are forgotten."""
        requests = tuple(self._requests)
        self._requests.clear()
        self._num_tokens = 0
        return requests
