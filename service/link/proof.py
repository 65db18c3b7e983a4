"""How both ends of a link prove that they know the replica's secret, without sending it.

The ingress sends a nonce. The replica answers with a nonce of its own and its proof. Only then the ingress sends its
proof, and after it the calls. A proof is an HMAC-SHA256 of the role and both nonces, so none can be sent again or back.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

#: bytes of a nonce, and of a proof
NONCE = PROOF = 32
_PURPOSE = b"mrp-serve link 1 "


def make_nonce() -> bytes:
    """A nonce for one connection."""
    return secrets.token_bytes(NONCE)


def make_proof(secret: str, role: Literal["ingress", "replica"], ingress_nonce: bytes, replica_nonce: bytes) -> bytes:
    """The proof of one end."""
    return hmac.digest(secret.encode(), _PURPOSE + role.encode() + ingress_nonce + replica_nonce, "sha256")


def is_proof(given: bytes, wanted: bytes) -> bool:
    """Whether they are equal, in constant time."""
    return hmac.compare_digest(given, wanted)
