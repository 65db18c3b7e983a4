"""The text and the log-probabilities of one token of an answer, as they cross from a replica to the ingress."""

from service.ipc.data import Data, Private


class TopLogprob(Data, frozen=True):
    """One of the most likely tokens at a position. `logprob`: natural logarithm. `text`, `data`: as in `TokenText`."""

    token: int
    text: Private[str]
    data: Private[bytes | None]
    logprob: float


class TokenText(Data, frozen=True):
    """One token of an answer."""

    text: Private[str]  # the token's own text, or `token_id:N` if it is not a whole character
    data: Private[bytes | None]  # its bytes, None if unknown
    delta: Private[str]  # the text that it adds to the answer
    top_logprobs: Private[tuple[TopLogprob, ...]] = ()  # the most likely tokens at its position, if requested
