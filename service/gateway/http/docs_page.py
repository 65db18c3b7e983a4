"""The page at /docs, its scripts and styles, and the schema at /openapi.json that it shows. `openapi.py` mounts them.

The files are those of the package fastapi-offline, of which nothing else is used. Nothing is loaded from elsewhere.
The headers allow the page's one inline script by its hash, and no frame around it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from fastapi.openapi.docs import get_swagger_ui_html
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

SCHEMA: Final = "/openapi.json"
_PAGE, _FILES = "/docs", "/docs/static"
_PARAMETERS: Final = {"defaultModelsExpandDepth": 0, "validatorUrl": None}
_POLICY: Final = (
    "default-src 'none'; script-src 'self' '{script}'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def docs_routes(title: str, schema: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    """The routes. `schema` is called when it is first asked for; its bytes are kept."""

    @lru_cache(maxsize=8)
    def written(prefix: str) -> bytes:
        servers = {"servers": [{"url": prefix}]} if prefix else {}
        return to_json({**schema(), **servers})

    async def document(request: Request) -> Response:
        return Response(written(_prefix(request)), media_type="application/json")

    async def page(request: Request) -> Response:
        prefix = _prefix(request)
        html = get_swagger_ui_html(
            openapi_url=prefix + SCHEMA,
            title=f"{title} - Swagger UI",
            swagger_js_url=f"{prefix}{_FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{prefix}{_FILES}/swagger-ui.css",
            swagger_favicon_url=f"{prefix}{_FILES}/favicon.png",
            swagger_ui_parameters=_PARAMETERS,
        )
        html.headers["Content-Security-Policy"] = _POLICY.format(script=_hash(bytes(html.body)))
        html.headers["Referrer-Policy"] = "no-referrer"
        return html

    files = Mount(_FILES, StaticFiles(directory=_folder()))
    return [files, Route(SCHEMA, document, include_in_schema=False), Route(_PAGE, page, include_in_schema=False)]


def _prefix(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _hash(page: bytes) -> str:
    """The hash of the page's inline script, as policies name it."""
    [script] = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode()


def _folder() -> Path:
    spec = find_spec("fastapi_offline")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("fastapi-offline is not installed")
    return Path(spec.origin).parent / "static"
