"""The page's files: types, sizes, caching, headers, without a browser."""

import re
from pathlib import Path

import httpx
import pytest

from service.gateway.playground.routes import files
from tests.gateway.doubles import Scripted
from tests.gateway.helpers import application, client, over

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
TYPES[".svg"] = "image/svg+xml"
ADDRESSES = {name: "/" if name == "index.html" else f"/playground/{name}" for name in files()}


@pytest.fixture(scope="module")
def app():
    """One application for all that only read."""
    return application(Scripted())


@pytest.fixture
async def http(app):
    async with client(app) as http:
        yield http


@pytest.mark.parametrize("name", ADDRESSES)
async def test_every_file_has_its_type_and_is_kept_by_browsers_until_it_changes(http, name):
    answer = await http.get(ADDRESSES[name])
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == TYPES[Path(name).suffix]
    assert answer.content == files()[name]
    assert answer.headers["cache-control"] == "no-cache"
    again = await http.get(ADDRESSES[name], headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", answer.headers["etag"])


@pytest.mark.parametrize("name", ADDRESSES)
async def test_headers_allow_nothing_from_elsewhere_and_nothing_inline(http, name):
    headers = (await http.get(ADDRESSES[name])).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    from_self = {name for name, value in policy.items() if value == "'self'"}
    assert from_self == {"script-src", "style-src", "img-src", "connect-src"}
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors", "trusted-types")} == {"'none'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_other_files_are_not_found_as_the_api_words_it(http):
    for path in ("/playground/nope.js", "/playground/", "/playground/index.html", "/playground/../app.py"):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_the_page_needs_no_key_but_its_requests_do():
    async with over(Scripted(), api_keys=("secret",)) as http:
        for address in ADDRESSES.values():
            assert (await http.get(address)).status_code == 200
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/v1/models", headers={"Authorization": "Bearer secret"})).status_code == 200


async def test_behind_a_prefix_the_page_is_there_with_a_slash_at_the_end(app):
    """Its addresses are relative, so without the slash they would lead elsewhere."""

    async def below(scope, receive, send):  # type: ignore[no-untyped-def]
        await app({**scope, "root_path": "/models/demo"}, receive, send)

    async with client(below) as http:
        bare = await http.get("/models/demo")
        assert bare.status_code in {307, 308}
        assert httpx.URL(bare.headers["location"]).path == "/models/demo/"
        assert (await http.get("/models/demo/")).content == files()["index.html"]
        assert (await http.get("/models/demo/playground/main.js")).content == files()["main.js"]


def test_nothing_is_loaded_from_elsewhere_or_stands_inline():
    page = files()["index.html"].decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
    for name, content in files().items():
        foreign = re.findall(r"https?://[^\s\"'`)]+", content.decode())
        assert set(foreign) <= {"http://www.w3.org/2000/svg"}, name
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {address for address in addresses if address != "docs"} <= {f"playground/{name}" for name in files()}
    assert not [address for address in addresses if address.startswith("/")]


def test_no_text_becomes_markup():
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert [name for name, content in files().items() if sink.encode() in content] == []
