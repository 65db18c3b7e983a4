"""The port of the service, where this program itself sends requests: directly, whatever proxies are set."""

import http.client
import json

#: seconds that GET /health may take; it asks every replica
_HEALTH_S = 5.0
#: characters of an answer that is not the service's own
_SHOWN = 200


def in_url(host: str) -> str:
    """An address as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


class OwnPort:
    """The address of the settings, as a client on this machine reaches it."""

    def __init__(self, host: str, port: int) -> None:
        self.host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where to ask
        self.port = port
        self.url = f"http://{in_url(self.host)}:{port}"

    def get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of an answer. OSError (TimeoutError, too) or http.client.HTTPException without one."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def unhealthy(self) -> str:
        """Why the service does not answer requests. Empty if GET /health says that it does."""
        try:
            status, body = self.get("/health", _HEALTH_S)
        except TimeoutError:
            return f"{self.url}/health has not answered within {_HEALTH_S:g} s"
        except (OSError, http.client.HTTPException) as error:
            return f"{self.url} cannot be asked: {type(error).__name__}: {error}"
        return "" if status == http.client.OK else f"{self.url}/health is {status}: {_message(body)}"


def _message(body: bytes) -> str:
    """The message of an error's body. Of another program's body, the first characters."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return repr(body[:_SHOWN].decode("utf-8", "replace"))
