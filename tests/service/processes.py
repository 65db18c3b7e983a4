"""The processes of a running service, and what they listen on."""

from pathlib import Path

_LISTEN = "0A"
_LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def descendants(ancestor):
    """Every process that a process has started, directly or not; Ray starts all of its own so."""
    parent = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    processes = []
    for process in parent:
        above = process
        while above and above != ancestor:
            above = parent.get(above, 0)
        if above:
            processes.append(process)
    return processes


def command(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def processes_of(service, deployment):
    """Those of a deployment among the processes that a service started."""
    title = f"ray::ServeReplica:mrp:{deployment}"
    return [process for process in descendants(service.process.pid) if command(process).startswith(title)]


def ports(ancestor, public):
    """Port -> command of the process that listens on it: of a process and its descendants.

    `public`: those for others than this machine, else those on loopback.
    """
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == _LISTEN and (address not in _LOOPBACK) == public:
                sockets[f"socket:[{fields[9]}]"] = int(port, 16)
    return {
        sockets[name]: command(process)
        for process in (ancestor, *descendants(ancestor))
        for name in _held(process)
        if name in sockets
    }


def _held(process):
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):
        try:
            yield str(descriptor.readlink())
        except OSError:
            continue
