"""The only use of a private part of Ray Serve: a replica's port of Serve is on loopback where Ray's node is.

Serve opens a gRPC port for every replica, on all addresses, and neither a setting nor a public call chooses another
address. Ray's token protects the port. But `mrp-serve serve` promises that nothing of one machine's service listens to
others, but for `host` and `port`. `tests/test_ray_version.py` and `tests/service/test_shutdown.py` hold this.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LOOPBACK = "127.0.0.1"


def keep_serve_on_loopback(node_address: str) -> None:
    """Makes Serve open this process's port on loopback if the node's address is loopback.

    For deployments' constructors: Serve opens the port afterwards, by `add_port_to_grpc_server`.
    """
    if node_address != _LOOPBACK:
        return
    replica: Any = import_module("ray.serve._private.replica")
    add = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, where: add(server, where.replace("[::]", _LOOPBACK))
