"""`mrp-serve serve` over HTTP: golden decodes, streams, the log, metrics, refusals."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.decode.modes import MODES
from service.telemetry.metrics import METRICS
from tests.service.processes import command, descendants
from tests.service.reading import events, eventually
from tests.service.running import DEAD_PROXIES, GOLDEN

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
CASES = json.loads((GOLDEN / "expected.json").read_text())
KNOBS = ("tokens_per_step", "threshold", "mrp_steps")


def body(case, **more):
    knobs = {knob: case[knob] for knob in KNOBS if knob in case}
    fields = {key: case[key] for key in ("mode", "prompt_token_ids", "max_new_tokens", "temperature")}
    return {**fields, **knobs, "stop_token_ids": [510], **more}


def test_proxies_of_the_environment_do_not_come_between_the_processes(service, client):
    """Each of them may lead nowhere (`DEAD_PROXIES`). So it is in all tests of a running service."""
    environment = Path(f"/proc/{service.process.pid}/environ").read_bytes().split(b"\0")
    assert {f"{name}={value}".encode() for name, value in DEAD_PROXIES.items()} <= set(environment)
    assert client.get("/health").json()["replicas_ready"] == 1
    assert client.post("/generate", json=body(CASES[0])).json()["token_ids"] == CASES[0]["token_ids"]


def test_all_golden_decodes_at_once(client):
    def post(case):
        return client.post("/generate", json=body(case))

    with ThreadPoolExecutor(len(CASES)) as pool:
        responses = list(pool.map(post, CASES))
    assert [response.status_code for response in responses] == [200] * len(CASES)
    for case, response in zip(CASES, responses, strict=True):
        answer = response.json()
        assert answer["token_ids"] == case["token_ids"], case
        forwards = answer["stats"]["forwards"]
        assert forwards["denoise"] + forwards["verify"] <= case["backbone_denoise_forwards"]
        assert answer["mode"] == case["mode"]


@pytest.mark.parametrize("case", CASES[::5], ids=lambda case: case["mode"])
def test_a_stream_is_the_answer_in_pieces(client, case):
    whole = client.post("/generate", json=body(case)).json()
    with client.stream("POST", "/generate", json=body(case, stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *blocks, (last, done) = events(response)
    assert last == "done"
    assert {name for name, _ in blocks} == {"block"}
    assert [data["index"] for _, data in blocks] == sorted({data["index"] for _, data in blocks})
    assert "".join(data["text"] for _, data in blocks) == whole["text"]
    assert [token for _, data in blocks for token in data["token_ids"]] == whole["token_ids"] == case["token_ids"]
    assert done["finish_reason"] == whole["finish_reason"]
    assert done["usage"] == whole["usage"]


def test_a_request_has_one_line_in_the_log_that_keeps_its_secrets(client, service):
    for request, status in ((body(CASES[0]), 200), ({"prompt": "xylophone", "temperature": "xylophone"}, 422)):
        response = client.post("/generate", json=request, headers={"x-request-id": f"logged-{status}"})
        assert response.status_code == status

    def lines(status):
        everything = map(json.loads, (line for line in service.stderr.splitlines() if line.startswith("{")))
        return [line for line in everything if line.get("request_id") == f"logged-{status}"]

    eventually(lambda: lines(200) and lines(422), "the requests were not logged")
    (answered,), (refused,) = [[line for line in lines(s) if line["message"] == "request"] for s in (200, 422)]
    assert (answered["completion_tokens"], answered["mode"]) == (len(CASES[0]["token_ids"]), CASES[0]["mode"])
    assert (refused["status"], refused["error"]) == (422, "invalid_request")
    assert "xylophone" not in service.stderr
    assert "second" not in service.stderr


def test_metrics_of_all_processes_have_every_name(client):
    client.post("/generate", json=body(CASES[0])).raise_for_status()
    page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(page.text)}
    assert set(families) == {metric.exposed.removesuffix("_total") for metric in METRICS if metric.where != "trainer"}
    assert all(sample.labels["replica"] for family in families.values() for sample in family.samples)
    assert sum(sample.value for sample in families["mrp_replicas_linked"].samples) == 1


def test_health_models_and_docs(client, service):
    assert service.health_while_loading <= {None, 503, 404}
    assert client.get("/health").json() == {"status": "ok", "replicas_ready": 1}
    [model] = client.get("/v1/models").json()["data"]
    assert model["block_size"] == 4
    assert model["modes"] == list(MODES)
    assert "/generate" in client.get("/openapi.json").json()["paths"]
    assert "/docs/static/swagger-ui-bundle.js" in client.get("/docs").text
    assert "javascript" in client.get("/docs/static/swagger-ui-bundle.js").headers["content-type"]


def test_no_proxy_runs_before_the_only_ingress(client, service):
    running = [command(process) for process in descendants(service.process.pid)]
    assert [title for title in running if "ServeReplica:mrp:Ingress" in title]
    assert not [title for title in running if "ProxyActor" in title]


def test_a_taken_port_is_said_before_anything_starts(service):
    command = [sys.executable, "-m", "service.cli", "serve", "--model", str(GOLDEN), "--port", str(service.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{service.port}: Address already in use" in done.stderr
