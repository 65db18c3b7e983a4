"""GET /metrics: all names, and counters that equal the sums over the answers."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine import BlockEvent, GenerationRequest
from service.engine.observer import EngineState
from service.engine.request import ForwardCounts, Stats
from service.gateway.metrics import expose
from service.messages.replica_status import Snapshot, Status
from service.messages.wire import ReplicaRequest, ReplicaStream, Weights
from service.replica.metrics import ReplicaMetrics
from service.replica.replica import Replica
from service.telemetry.metrics import METRICS, Registry
from tests.gateway.generate.helpers import CASES, GENERATE, ask, body, golden_body, streamed
from tests.gateway.helpers import eventually, over, page, read, samples_of
from tests.gateway.local import LocalBackend

#: the block size of `sdar-mrp-random-a`
BLOCK = 8
#: counters whose labels are known only at an event: a plan of a calibration file, a position in a draft
LATE = ("request_quality_total", "spec_decode_num_accepted_tokens_per_pos_total")
FORWARDS = ("prefill", "denoise", "verify", "commit", "mrp")


async def text(http: httpx.AsyncClient) -> str:
    response = await http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return response.text


class TestNames:
    async def test_every_metric_is_exposed_and_no_other(self, http):
        for case in CASES[::6]:
            await ask(http, golden_body(case))
        await http.post(GENERATE, json={})
        await ask(http, {**golden_body(CASES[0]), "mode": None, "tokens_per_step": None, "quality": "lossless"})
        families = {family.name: family for family in text_string_to_metric_families(await text(http))}
        wanted = {metric.exposed.removesuffix("_total"): metric for metric in METRICS if metric.where != "trainer"}
        assert sum(name.startswith("mrp_") for name in wanted) == len(wanted) - 3
        assert families.keys() == wanted.keys()
        for name, family in families.items():
            metric = wanted[name]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
            assert family.samples, name
            for sample in family.samples:
                assert sample.labels.keys() - {"le", "reason"} <= {*metric.labels, "replica"}
                assert sample.labels["replica"] in {"r0", "i0", "queue"}


class TestStart:
    """Prometheus sees no increase from nothing to 1, and a sum with a counter that is missing is empty."""

    async def test_counters_are_0_before_their_first_event_and_events_add_no_series(self, make_generator):
        async with over(make_generator()) as http:
            before = counters(await text(http))
            for case in CASES[::6]:
                await ask(http, golden_body(case))
            await http.post(GENERATE, json={})
            await http.post("/nope", json={})
            after = counters(await text(http))
        counted = {
            metric.exposed
            for metric in METRICS
            if metric.kind == "counter" and metric.where != "trainer" and metric.name not in LATE
        }
        assert {name for name, _ in before} == counted
        assert set(before.values()) == {0.0} != set(after.values())
        assert after.keys() == before.keys()


def counters(content: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The counters on a page by their names and labels, without those of `LATE`."""
    late = {f"mrp_{name}" for name in LATE}
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in samples_of(content)
        if sample.name.endswith("_total") and sample.name not in late
    }


def total(answers: list[dict[str, Any]], *path: str) -> int:
    def value(answer: Any) -> int:
        for name in path:
            answer = answer[name]
        return int(answer)

    return sum(value(answer) for answer in answers)


class TestCounters:
    async def test_counters_add_up_to_the_answers(self, make_generator):
        async with over(make_generator()) as http:
            cases = CASES[::2]
            requests = [
                (ask if number % 2 else streamed)(http, golden_body(case, return_trace=True))
                for number, case in enumerate(cases)
            ]
            answers = list(await asyncio.gather(*requests))
            metrics = await page(http)
        assert metrics("mrp_prompt_tokens_total") == total(answers, "usage", "prompt_tokens")
        assert metrics("mrp_generation_tokens_total") == total(answers, "usage", "completion_tokens")
        for kind in FORWARDS:
            assert metrics("mrp_forwards_total", kind=kind) == total(answers, "stats", "forwards", kind)
        proposed, accepted = total(answers, "stats", "drafts_proposed"), total(answers, "stats", "drafts_accepted")
        assert metrics("mrp_spec_decode_num_draft_tokens_total") == proposed > accepted
        assert metrics("mrp_spec_decode_num_accepted_tokens_total") == accepted > 0
        assert metrics("mrp_tokens_remasked_total") == total(answers, "stats", "remasked") > 0
        self.check_steps_of_canvases(answers, metrics)
        self.check_ends(answers, metrics)
        self.check_steps([(a["mode"], step) for a in answers for step in a["trace"]], metrics)

    def check_steps_of_canvases(self, answers: list[dict[str, Any]], metrics: Any) -> None:
        forwards = sum(total(answers, "stats", "forwards", kind) for kind in ("denoise", "verify"))
        blocks = metrics("mrp_time_to_first_block_seconds_count") + metrics("mrp_inter_block_latency_seconds_count")
        steps = metrics("vllm:diffusion_num_denoising_steps_total")
        assert steps == forwards + blocks > forwards
        assert metrics("vllm:diffusion_num_canvas_positions_total") == steps * BLOCK
        tokens = total(answers, "usage", "completion_tokens")
        assert metrics("vllm:diffusion_num_committed_tokens_total") == tokens

    @pytest.mark.parametrize("tokens_per_step", [1, 2])
    async def test_vllm_bench_serve_prints_the_steps_of_a_canvas(self, make_generator, tokens_per_step):
        """Its arithmetic, in vLLM 0.33's `benchmarks/serve.py`, of two whole blocks."""
        request = body(prompt_token_ids=[5] * BLOCK, mode="static", tokens_per_step=tokens_per_step)
        async with over(make_generator()) as http:
            await ask(http, request | {"max_new_tokens": 2 * BLOCK, "ignore_eos": True})
            metrics = await page(http)
        steps, positions, committed = (
            metrics(f"vllm:diffusion_num_{name}_total")
            for name in ("denoising_steps", "canvas_positions", "committed_tokens")
        )
        canvases = committed / (positions / steps)
        assert (canvases, (steps - canvases) / canvases) == (2, BLOCK / tokens_per_step)

    def check_ends(self, answers: list[dict[str, Any]], metrics: Any) -> None:
        ends = Counter((answer["mode"], answer["finish_reason"]) for answer in answers)
        assert len(ends) > 5
        for (mode, reason), count in ends.items():
            assert metrics("mrp_request_success_total", mode=mode, finished_reason=reason, replica="r0") == count
        for mode, count in Counter(answer["mode"] for answer in answers).items():
            of_mode = [answer for answer in answers if answer["mode"] == mode]
            tokens = total(of_mode, "usage", "completion_tokens")
            assert metrics("mrp_generation_tokens_total", mode=mode) == tokens
            assert metrics("mrp_tokens_per_forward_count", mode=mode) == count
            assert metrics("mrp_e2e_request_latency_seconds_count", mode=mode) == count
            assert metrics("mrp_time_to_first_block_seconds_count", mode=mode) == count
            rates = sum(answer["stats"]["tokens_per_forward"] for answer in of_mode)
            assert metrics("mrp_tokens_per_forward_sum", mode=mode) == pytest.approx(rates, abs=1e-3)
        assert metrics("mrp_request_queue_time_seconds_count") == len(answers)

    def check_steps(self, steps: list[tuple[str, dict[str, Any]]], metrics: Any) -> None:
        by_position: Counter[int] = Counter()
        revealed: Counter[tuple[str, str]] = Counter()
        for mode, step in steps:
            by_position.update(range(step["accepted"]))
            proposed = len(step["revealed"]) if step["kind"] == "mrp" else step["accepted"]
            revealed[mode, "mrp" if step["kind"] == "mrp" else "draft"] += proposed
            revealed[mode, "backbone"] += len(step["revealed"]) - proposed
        name = "mrp_spec_decode_num_accepted_tokens_per_pos_total"
        assert by_position.total() == metrics(name)
        for position, count in by_position.items():
            assert metrics(name, position=str(position)) == count
        for (mode, source), count in revealed.items():
            assert metrics("mrp_tokens_revealed_total", mode=mode, source=source) == count

    async def test_refusals_are_counted_by_their_reason(self, generator):
        async with over(generator, api_keys=("k",)) as http:
            await http.post(GENERATE, json={})
            http.headers["x-api-key"] = "k"
            await http.post(GENERATE, json={})
            await http.post(GENERATE, json=body(max_new_tokens=5000))
            await http.post(GENERATE, json=body(max_new_tokens=5000, stream=True))
            await http.post("/nope", json={})
            await http.get("/nope")
            metrics = await page(http)
        counts = {"unauthorized": 1, "invalid_request": 1, "prompt_too_long": 2, "not_found": 1}
        for reason, count in counts.items():
            assert metrics("mrp_request_rejected_total", reason=reason, replica="i0") == count
        assert metrics("mrp_request_rejected_total") == 5


class TestEnds:
    def test_time_in_the_ingress_counts(self):
        metrics = ReplicaMetrics()
        for index, seconds in enumerate((2.0, 3.0)):
            metrics.on_event(REQUEST, block(index, seconds), ())
        assert value(metrics, "mrp_time_to_first_block_seconds_sum") == 10 + 2
        assert value(metrics, "mrp_inter_block_latency_seconds_sum") == 1

    def test_a_continued_answer_has_one_prompt_and_one_first_block(self):
        metrics = ReplicaMetrics()
        metrics.on_event(replace(REQUEST, num_continued=1), block(0, 2.0), ())
        assert value(metrics, "mrp_generation_tokens_total") == 1
        assert value(metrics, "mrp_prompt_tokens_total") == 0
        assert value(metrics, "mrp_time_to_first_block_seconds_count") == 0

    def test_ends_are_counted_without_a_look_at_them(self):
        """Else they would fill the memory of a replica that nobody scrapes."""
        metrics = ReplicaMetrics()
        for _ in range(1000):
            metrics.finished("static", "length", Stats())
            assert len(metrics._ended) < 300
        assert value(metrics, "mrp_request_success_total") == 1000
        assert not metrics._ended

    def test_an_abort_is_counted_and_not_timed(self):
        metrics = ReplicaMetrics()
        metrics.finished("static", "abort", Stats())
        assert value(metrics, "mrp_request_success_total") == 1
        for name in ("e2e_request_latency_seconds", "request_queue_time_seconds", "tokens_per_forward"):
            assert value(metrics, f"mrp_{name}_count") == 0


REQUEST = GenerationRequest("1", (1, 2, 3), waited_s=10.0)


def block(index: int, seconds: float) -> BlockEvent:
    return BlockEvent("1", index, (5,), Stats(ForwardCounts(denoise=1), total_s=seconds))


def value(metrics: ReplicaMetrics, name: str) -> float:
    families = metrics.families(EngineState(0, 0, 0, 1), Weights(), "r0")
    return read(families, name)


class TestGauges:
    async def test_gauges_follow_the_engines_state(self, make_generator, gate):
        """Three run, each with 3 of 12 pages; one waits."""
        generator = make_generator(deps=gate.deps, max_num_seqs=3, kv_cache_tokens=12 * 8)
        async with over(generator) as http:
            first = asyncio.ensure_future(ask(http, body()))
            await gate.holds()
            tasks = [asyncio.ensure_future(ask(http, body(prompt_token_ids=[n] * 8))) for n in range(3)]
            await eventually(lambda: generator.snapshot().in_flight == 4)
            gate.let(1)
            await gate.holds(before=2)  # the engine takes the others between two steps
            metrics = await page(http)
            gate.release()
            await asyncio.gather(first, *tasks)
        assert metrics("mrp_num_requests_running", replica="r0") == 3
        assert metrics("mrp_num_requests_waiting", replica="r0") == 1
        assert metrics("mrp_kv_cache_usage_perc") == 0.75


class Two(LocalBackend):
    def __init__(self, *generators: Replica) -> None:
        self.backends = [LocalBackend(generator) for generator in generators]
        self.turn = 0

    def next(self) -> LocalBackend:
        self.turn += 1
        return self.backends[self.turn % 2]

    def stream(self, request: ReplicaRequest) -> ReplicaStream:
        return self.next().stream(request)

    async def statuses(self) -> list[Status]:
        return [status for backend in self.backends for status in await backend.statuses()]

    async def snapshots(self, ingress: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [ingress], [snapshot for backend in self.backends for snapshot in (await backend.snapshots(ingress))[1]]


class TestReplicas:
    async def test_two_replicas_are_counted_side_by_side(self, make_generator):
        async with over(Two(make_generator("r0"), make_generator("r1"))) as http:
            answers = [await ask(http, body(max_new_tokens=tokens, ignore_eos=True)) for tokens in (1, 2, 4)]
            metrics = await page(http)
            assert (await http.get("/health")).json() == {"status": "ok", "replicas_ready": 2}
        assert metrics("mrp_generation_tokens_total", replica="r1") == 1 + 4
        assert metrics("mrp_generation_tokens_total", replica="r0") == 2
        assert metrics("mrp_generation_tokens_total") == total(answers, "usage", "completion_tokens")
        assert metrics("mrp_e2e_request_latency_seconds_bucket", le="+Inf", replica="r1") == 2

    def test_requests_that_no_replica_has_wait_in_the_queue(self):
        families = Registry("replica").families("r0")
        replicas = [Snapshot("r0", 3, families), Snapshot("r1", 1, families)]
        for in_hand, queued in ((9, 5), (4, 0), (2, 0)):
            ingresses = [Snapshot("i0", in_hand - 1, ()), Snapshot("i1", 1, ())]
            content = expose(ingresses, replicas).decode()
            assert f'mrp_num_requests_waiting{{replica="queue"}} {queued}.0' in content
            assert content.count("# TYPE mrp_num_requests_waiting gauge") == 1
