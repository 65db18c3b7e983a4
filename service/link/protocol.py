"""The protocol of a link: proofs of both ends, then messages. Messages of other types are refused.

The ingress sends a nonce. The replica answers with a nonce of its own and its proof. Only then the ingress sends its
proof, and after it the calls. A proof is an HMAC-SHA256 of the role and both nonces, so none can be sent again or back.
"""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Literal

from msgspec.structs import replace
from pydantic_core import to_json

from service.ipc.data import Data, Private
from service.ipc.messagepack import MessagePack, Unsendable
from service.messages.wire import Chunk, Encoded, Ending, Failure, Progress, ReplicaRequest

#: bytes of a nonce, and of a proof
NONCE = PROOF = 32
_PURPOSE = b"mrp-serve link 1 "

Method = Literal["encode", "stream"]


def make_nonce() -> bytes:
    """A nonce for one connection."""
    return secrets.token_bytes(NONCE)


def make_proof(secret: str, role: Literal["ingress", "replica"], ingress_nonce: bytes, replica_nonce: bytes) -> bytes:
    """The proof of one end."""
    return hmac.digest(secret.encode(), _PURPOSE + role.encode() + ingress_nonce + replica_nonce, "sha256")


class ReplicaCall(Data, frozen=True, tag=1):
    """A request of an ingress."""

    number: int  # identifies the call on this link
    method: Method
    request: ReplicaRequest  # without its messages and tools
    #: These as JSON text, empty without messages. JSON has integers of any size, MessagePack has not. Clients write
    #: such numbers into schemas, and models into calls.
    chat: Private[str] = ""

    @classmethod
    def of(cls, number: int, method: Method, request: ReplicaRequest) -> ReplicaCall:
        if request.messages is None:
            return cls(number, method, request)
        try:
            chat = to_json([request.messages, request.tools]).decode()
        except ValueError as error:  # too deep, or half a surrogate pair
            raise Unsendable(f"messages cannot be written as JSON: {type(error).__name__}") from error
        return cls(number, method, replace(request, messages=None, tools=()), chat)

    def whole_request(self) -> ReplicaRequest:
        if not self.chat:
            return self.request
        messages, tools = json.loads(self.chat)
        return replace(self.request, messages=tuple(messages), tools=tuple(tools))


class CancelCall(Data, frozen=True, tag=2):
    """Aborts a call."""

    number: int


class ReplicaItem(Data, frozen=True, tag=3):
    """A part of an answer, or an encoded prompt."""

    number: int
    item: Progress | Chunk | Ending | Failure | Encoded
    other_requests: int  # the replica's requests of other ingresses


class CallEnd(Data, frozen=True, tag=4):
    """A call has no further items."""

    number: int
    refused: bool = False  # the call came after the replica had begun to drain, and nothing was decoded


class DrainNotice(Data, frozen=True, tag=5):
    """The replica drains: it takes no further calls and finishes the running ones."""


class ReplicaAlive(Data, frozen=True, tag=6):
    """The replica runs. Sent regularly, so that a link never falls silent."""


#: the codecs of the two ends, by the messages that come there
AT_REPLICA = MessagePack(ReplicaCall | CancelCall)
AT_INGRESS = MessagePack(ReplicaItem | CallEnd | DrainNotice | ReplicaAlive)
