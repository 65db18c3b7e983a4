"""Serves the playground from memory: `GET /` and its files. The page needs no API key; its requests to the API do.

The headers allow nothing from elsewhere, no inline script or style, and no text that becomes markup.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "page"
_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
#: browsers keep the files, and ask each time whether they are still right
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def playground_routes() -> list[Route]:
    """`/` and `/playground/<file>` for every file of the page."""
    index = Route("/", _index)
    index.path_regex = re.compile("^/?$")  # behind a prefix also without the slash
    return [index, *(Route(f"/playground/{name}", _file) for name in files() if name != _INDEX)]


@cache
def files() -> dict[str, bytes]:
    """The content of every file by its name, the states' names and colours among them."""
    return {path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}


async def _index(request: Request) -> Response:
    if not request.url.path.endswith("/"):  # the page's addresses are relative
        return Response(status_code=307, headers={**HEADERS, "Location": f"{request.scope['root_path']}/"})
    return await _file(request, _INDEX)


async def _file(request: Request, name: str = "") -> Response:
    name = name or request.url.path.rpartition("/")[2]
    content = files()[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[Path(name).suffix])
