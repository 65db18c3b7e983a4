"""`python -m loadtest.overhead.plain PORT`: the least that FastAPI on uvicorn can cost."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI

from loadtest.harness import ROOT, free_port

_START_S = 60


def app() -> FastAPI:
    made = FastAPI()

    @made.get("/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    return made


@contextmanager
def running() -> Iterator[str]:
    """The server in a process of its own, and its address."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", __name__, str(port)], cwd=ROOT)  # noqa: S603 - our own program
    url = f"http://127.0.0.1:{port}"
    try:
        _until_it_answers(url)
        yield url
    finally:
        process.terminate()
        process.wait()


def _until_it_answers(url: str) -> None:
    for _ in range(_START_S * 10):
        try:
            httpx.get(f"{url}/live")
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit(f"the plain server did not answer within {_START_S} s")


if __name__ == "__main__":
    uvicorn.run(app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical", access_log=False)
