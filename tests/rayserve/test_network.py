"""gRPC and the proxies of the environment, in a process of its own: gRPC reads the variables as the system has them."""

import json
import os
import subprocess
import sys

from tests.service.running import DEAD_PROXIES

#: Opens channels to a server of its own, as Serve does, and says in which states they end.
CHANNELS = """
import concurrent.futures, json, os, queue, sys, grpc
from service import hooks
from service.rayserve.network import leave_proxies_out
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
ends = {grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE}

def state(variables, prepare):
    os.environ.update(variables)
    prepare()
    states = queue.Queue()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
    channel.subscribe(states.put, try_to_connect=True)
    end = next(state.name for state in iter(states.get, None) if state in ends)
    channel.close()
    for name in {*variables, "grpc_proxy", "GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES"}:
        os.environ.pop(name, None)
    return end

calls = {"nothing": lambda: None, "network": leave_proxies_out, "hooks": hooks.proxy_middleware}
print(json.dumps([[state(variables, call) for call in calls.values()] for variables in json.loads(sys.argv[1])]))
sys.stdout.flush()
os._exit(0)
"""
DEAD = DEAD_PROXIES["http_proxy"]


def test_grpc_connects_directly_whatever_proxies_are_set() -> None:
    """Each process of a service calls one of two functions. Without a call the same channels fail."""
    variables = [
        {"http_proxy": DEAD},
        {"https_proxy": DEAD, "no_proxy": "*"},
        {"grpc_proxy": DEAD, "no_proxy": "127.0.0.1", "no_grpc_proxy": "example.org"},
        {"GRPC_ADDRESS_HTTP_PROXY": "127.0.0.1:9", "GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES": "127.0.0.0/8"},
    ]
    command = [sys.executable, "-c", CHANNELS, json.dumps(variables)]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) == [["TRANSIENT_FAILURE", "READY", "READY"]] * len(variables)
