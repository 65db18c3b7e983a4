"""TLS of the links, by the certificates that Ray itself uses: `RAY_USE_TLS` and the three `RAY_TLS_…` variables.

Both ends show a certificate, and check that the cluster's authority has signed the other's. Names in certificates are
not checked: a replica proves by its secret who it is (`link/protocol.py`).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from functools import partial

from service.errors import SettingsError

_CERTIFICATE, _KEY, _AUTHORITY = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"


def link_tls(protocol: ssl._SSLMethod) -> ssl.SSLContext | None:
    """TLS of one end of the links. None where Ray does not encrypt. SettingsError for unusable files.

    `protocol`: ssl.PROTOCOL_TLS_SERVER of a replica, ssl.PROTOCOL_TLS_CLIENT of an ingress.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in {"1", "true"}:
        return None
    if missing := [name for name in (_CERTIFICATE, _KEY, _AUTHORITY) if not os.environ.get(name)]:
        raise SettingsError(f"RAY_USE_TLS is set, which needs {', '.join(missing)}", param=missing[0])
    certificate, key, authority = (os.environ[name] for name in (_CERTIFICATE, _KEY, _AUTHORITY))
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _load(_CERTIFICATE, certificate, partial(context.load_cert_chain, keyfile=key))
    _load(_AUTHORITY, authority, context.load_verify_locations)
    return context


def _load(name: str, path: str, load: Callable[[str], object]) -> None:
    try:
        load(path)
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(f"{name} is {path!r}: {error}", param=name) from error
