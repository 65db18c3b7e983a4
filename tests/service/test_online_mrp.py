"""Two real replicas whose MRP changes as they serve: answers stay, bad versions are refused, a lost trainer returns."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.processes import processes_of
from tests.service.reading import eventually, sample, samples, until
from tests.service.running import Service, Services

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
PROMPTS = [[number, 2, 3, 4] for number in range(1, 9)]


@pytest.fixture
def learning(services: Services) -> Service:
    """Two replicas and one trainer."""
    return services.of(
        "tests.service.learning", *("--num-replicas", 2, "--online-mrp-dir", "{folder}/mrp", "--admin-keys", "boss")
    )


@pytest.fixture
def client(learning: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=learning.url, timeout=120) as opened:
        until(opened, 200, replicas=2)
        yield opened


def answers(client: httpx.Client, **mode: Any) -> list[dict[str, Any]]:
    common = {"max_new_tokens": 40, "ignore_eos": True, **mode}
    responses = [client.post("/generate", json={"prompt_token_ids": prompt, **common}) for prompt in PROMPTS]
    assert {response.status_code for response in responses} == {200}
    return [response.json() for response in responses]


def test_answers_stay_while_mrp_changes(client: httpx.Client, learning: Service) -> None:
    wanted = [answer["token_ids"] for answer in answers(client, mode="static")]
    versions = set[int]()

    def drafted(published: int, refused: int) -> bool:
        """Asks all once more. Whether so many versions of MRP have been published and refused."""
        drafts = answers(client, mode="speculative", mrp_steps=2)
        assert [answer["token_ids"] for answer in drafts] == wanted
        versions.update(answer["stats"]["mrp_version"] for answer in drafts)
        counts = {kind: sample(client, "online_versions_total", outcome=kind) for kind in ("published", "refused")}
        return counts["published"] >= published and counts["refused"] >= refused

    eventually(lambda: drafted(published=2, refused=1), "no version is published", 120)
    assert len(versions) >= 2
    assert sample(client, "weights_version") > 0
    assert {line.labels["version"] for line in samples(client, "online_forwards_total")} >= {"0", "1"}
    assert_files(client)
    [lost] = processes_of(learning, "MrpTrainer")
    os.kill(lost, signal.SIGKILL)
    before = max(versions)
    eventually(lambda: drafted(1, 1) and processes_of(learning, "MrpTrainer") not in ([], [lost]), "none returns", 120)
    assert max(versions) > before
    assert "Traceback" not in learning.stderr


def assert_files(client: httpx.Client) -> None:
    """The replicas' weights come from the model's folder and one other, which is there, however many came before."""
    answer = client.get("/admin/weights", headers={"authorization": "Bearer boss"}).json()
    assert answer["mrp_version"] == answer["version"] >= 2
