"""The network of a service's processes: TLS of the links, no proxies for gRPC, and the address of Serve's own port.

Links use the certificates that Ray itself uses: `RAY_USE_TLS` and the three `RAY_TLS_…` variables. Both ends check that
the cluster's authority has signed the other's. A replica proves by its secret who it is (`link/protocol.py`).

`leave_proxies_out` is called by every process that asks others by Serve's gRPC. Serve's channels obey the variables of
proxies, as Ray's own do not. Downloads from the hub and traces still go through the proxies that the variables name.

`keep_serve_on_loopback` is the only use of a private part of Ray Serve, which opens a gRPC port for every replica on
all addresses. But `mrp-serve serve` promises that one machine's service listens to others at `host` and `port` only.
`tests/test_ray_version.py` and `tests/service/test_shutdown.py` hold this.
"""

import os
import ssl
from functools import partial
from importlib import import_module
from typing import Any

from service.errors import SettingsError

_LOOPBACK = "127.0.0.1"
#: gRPC obeys the first of grpc_proxy, https_proxy and http_proxy that is set, and then a list of addresses with a proxy
#: of their own. Both are empty, which no client but gRPC reads.
_NO_PROXIES = {"grpc_proxy": "", "GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES": ""}
_CERTIFICATE, _KEY, _AUTHORITY = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"


def leave_proxies_out() -> None:
    """Makes gRPC connect this process, and those that it starts, to others directly, whatever proxies are set."""
    os.environ.update(_NO_PROXIES)


def keep_serve_on_loopback(node_address: str) -> None:
    """Makes Serve open this process's port on loopback if the node's address is loopback.

    For deployments' constructors: Serve opens the port afterwards, by `add_port_to_grpc_server`.
    """
    if node_address != _LOOPBACK:
        return
    replica: Any = import_module("ray.serve._private.replica")
    add = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, where: add(server, where.replace("[::]", _LOOPBACK))


def link_tls(protocol: ssl._SSLMethod) -> ssl.SSLContext | None:
    """TLS of one end of the links. None where Ray does not encrypt. SettingsError for unusable files.

    `protocol`: ssl.PROTOCOL_TLS_SERVER of a replica, ssl.PROTOCOL_TLS_CLIENT of an ingress.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in {"1", "true"}:
        return None
    if missing := [name for name in (_CERTIFICATE, _KEY, _AUTHORITY) if not os.environ.get(name)]:
        raise SettingsError(f"RAY_USE_TLS is set, which needs {', '.join(missing)}", param=missing[0])
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    load_certificate = partial(context.load_cert_chain, keyfile=os.environ[_KEY])
    for name, load in ((_CERTIFICATE, load_certificate), (_AUTHORITY, context.load_verify_locations)):
        try:
            load(os.environ[name])
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(f"{name} is {os.environ[name]!r}: {error}", param=name) from error
    return context
