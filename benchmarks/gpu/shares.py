"""Checks in processes beside each other: each process has a share, and a row comes as soon as its check has ended."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.rows import Rows


class Check(NamedTuple):
    """`run` gives the numbers of right answers and of all answers. `promised`: whether all must be right."""

    name: str
    run: Callable[[], tuple[int, int]]
    promised: bool = True


class _Share(NamedTuple):
    process: SpawnProcess
    waiting: list[str]


def run_checks(rows: Rows, checks: Callable[[], Sequence[Check]], processes: int) -> None:
    """A row for each check. An error is one, too, and the end of a process, and what the time did not suffice for.

    `checks` makes the same checks in every process. `rows.failed`: whether a promise was not kept, or not tried.
    """
    names = [check.name for check in checks()]
    processes = min(processes, len(names))
    context, shares = multiprocessing.get_context("spawn"), dict[Connection, _Share]()
    for index in range(processes):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run_share, args=(sender, checks, index, processes), daemon=True)
        process.start()
        sender.close()
        shares[receiver] = _Share(process, names[index::processes])
    try:
        while shares and (ready := wait(shares, rows.seconds_left)):
            for pipe in shares.keys() & ready:
                if not _passed_on(rows, pipe, shares[pipe]):
                    del shares[pipe]
        for name in (name for share in shares.values() for name in share.waiting):
            rows.failed = True
            rows.write("left out: no time", of=name)
    finally:
        for share in shares.values():
            share.process.kill()
            share.process.join()


def _passed_on(rows: Rows, pipe: Connection, share: _Share) -> bool:
    try:
        name, row = pipe.recv()
    except EOFError:
        share.process.join()
        for name in share.waiting:
            rows.failed = True
            rows.write(name, error=f"its process ended with exit status {share.process.exitcode}")
        return False
    share.waiting.remove(name)
    rows.failed |= "error" in row or (row["promised"] and row["right"] != row["of"])
    rows.write(name, **row)
    return True


def _run_share(pipe: Connection, checks: Callable[[], Sequence[Check]], index: int, processes: int) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    for check in checks()[index::processes]:
        pipe.send((check.name, _row(check)))
        torch.cuda.empty_cache()


def _row(check: Check) -> dict[str, Any]:
    began = time.monotonic()
    try:
        right, of = check.run()
    except Exception:  # noqa: BLE001 - the next check tells more
        return {"promised": check.promised, "error": traceback.format_exc(limit=-6)}
    return {"promised": check.promised, "right": right, "of": of, "seconds": round(time.monotonic() - began, 1)}
