"""An HTTP client for locust's greenlets that sees every block when it arrives.

locust's own FastHttpUser returns a stream in pieces of a fixed size, so a block waits for the next ones. This client
reads the responses of the same library line by line.
"""

import json
import time
from typing import Any

from gevent import GreenletExit
from geventhttpclient import URL, HTTPClient
from geventhttpclient.response import HTTPParseError, HTTPSocketResponse

from loadtest.generator.protocol import Observation, Reader, reader
from loadtest.generator.rows import UNFINISHED

_BLOCK_SIZE = 64 * 1024


class Client:
    """A client of one service. It sends up to `concurrency` requests at once, on connections that stay open."""

    def __init__(self, url: str, timeout_s: float, concurrency: int = 1, api_key: str = "") -> None:
        parsed = URL(url)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        self._base = parsed.path.rstrip("/")
        limits = {"concurrency": concurrency, "connection_timeout": timeout_s, "network_timeout": timeout_s}
        self._http = HTTPClient.from_url(parsed, headers=headers, block_size=_BLOCK_SIZE, **limits)

    def get(self, path: str) -> Any:
        response = self._http.request("GET", self._base + path)
        try:
            return json.loads(response.read())
        finally:
            response.release()

    def ask(self, body: dict[str, Any], seen: Observation) -> None:
        """Sends one request. `seen` then holds the answer or the error."""
        response = None
        try:
            response = self._http.request("POST", self._base + seen.route.path, json.dumps(body).encode())
            seen.status = response.status_code
            _read(response, reader(seen))
        except (OSError, HTTPParseError) as error:
            seen.fail(f"connection: {type(error).__name__}: {error}", time.perf_counter())
        except GreenletExit:
            seen.fail(UNFINISHED, time.perf_counter())
            raise
        finally:
            if response is not None:
                response.release()

    def close(self) -> None:
        self._http.close()


def _read(response: HTTPSocketResponse, into: Reader) -> None:
    if into.seen.status != 200:
        body, after = response.read(), response.get("retry-after")
        into.refused(bytes(body), after if isinstance(after, str) else None, time.perf_counter())
    elif not into.seen.route.stream:
        into.whole(bytes(response.read()), time.perf_counter())
    else:
        while line := response.readline(b"\n"):
            into.line(line, time.perf_counter())
        into.end(time.perf_counter())
