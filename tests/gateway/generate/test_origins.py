"""Pages of other sites that ask a service without API keys; redirects; headers for browsers."""

import httpx
import pytest

from tests.gateway.doubles import Scripted
from tests.gateway.generate.helpers import GENERATE, problem
from tests.gateway.helpers import over

BAD = b"{"  # a body that is read gets 422


async def status(http: httpx.AsyncClient, **headers: str) -> int:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await http.post(GENERATE, content=BAD, headers=names)).status_code


@pytest.fixture(scope="module")
def open_service() -> httpx.AsyncClient:
    return over(Scripted())


@pytest.fixture(scope="module")
def locked_service() -> httpx.AsyncClient:
    return over(Scripted(), api_keys=("secret",))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 422),
        ({"Origin": "http://test"}, 422),
        ({"Origin": "http://evil.example", "Sec_Fetch_Site": "same-origin"}, 422),
        ({"Sec_Fetch_Site": "none"}, 422),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://test:81"}, 403),
        ({"Origin": "http://test", "Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
async def test_pages_of_other_sites_may_not_post(open_service, locked_service, headers, expected):
    assert await status(open_service, **headers) == expected
    assert (await open_service.get("/live", headers={"Origin": "http://evil.example"})).status_code == 200
    assert await status(locked_service, X_API_Key="secret", **headers) == 422


@pytest.mark.parametrize(
    ("host", "name", "expected"),
    [
        *(("127.0.0.1", name, 422) for name in ("localhost:8000", "127.0.0.1", "[::1]:8000", "10.0.0.7:8000", "")),
        *(("localhost", name, 422) for name in ("LOCALHOST", "app.localhost")),
        *(("127.0.0.1", name, 403) for name in ("evil.example", "evil.example:8000", "localhost.evil.example", "[x")),
        *(("0.0.0.0", name, 422) for name in ("myserver:8000", "mrp-serve.default.svc")),
    ],
)
async def test_on_loopback_other_names_are_refused(host, name, expected):
    assert await status(over(Scripted(), host=host, listens=True), Host=name) == expected


async def test_a_refusal_of_a_host_names_the_setting():
    async with over(Scripted(), listens=True) as http:
        response = await http.post(GENERATE, content=BAD, headers={"Host": "evil.example"})
    detail = problem(response, 403)
    assert detail["code"] == "forbidden"
    assert "'evil.example'" in detail["message"]
    assert "set `api_keys`" in detail["message"]


async def test_serves_proxies_take_any_name(open_service):
    assert await status(open_service, Host="mrp-serve.default.svc:8000") == 422


async def test_no_path_redirects_and_browsers_believe_the_content_type(open_service):
    for path in ("/generate/", "/v1/models/", "/docs/", "/live/"):
        assert (await open_service.get(path)).status_code == 404
    for path in ("/", "/docs", "/docs/static/swagger-ui.css", "/openapi.json", "/live", "/nope"):
        assert (await open_service.get(path)).headers["x-content-type-options"] == "nosniff"


async def test_the_documentation_stands_in_no_frame_and_runs_its_own_scripts_only(open_service):
    policy = (await open_service.get("/docs")).headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    [scripts] = [part.split()[1:] for part in policy.split("; ") if part.startswith("script-src")]
    assert scripts[0] == "'self'"
    assert scripts[1].startswith("'sha256-")
    assert len(scripts) == 2
