"""The parts of Serve that are not public and that the router by prefix builds on: what happens when they change."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.request_router import RequestRouter

from service import app
from service.rayserve.support import misfit
from service.settings import Settings

Break = Callable[[pytest.MonkeyPatch], None]


def test_the_installed_ray_is_the_one_the_router_was_written_for() -> None:
    """It fails with a Ray that has changed what `prefix_router.py` builds on. Read both before the bound is raised."""
    assert misfit() is None


def no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "service.rayserve.prefix_router", raising=False)
    monkeypatch.setitem(sys.modules, "ray.serve._private.request_router.pow_2_router", None)


def no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "service.rayserve.prefix_router", raising=False)
    monkeypatch.delattr("ray.serve._private.request_router.common.RequestRoutingContext")


def other_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def fulfill(self: Any, replica: Any, request_metadata: Any, deadline: float) -> None:
        pass

    monkeypatch.setattr(PowerOfTwoChoicesRequestRouter, "_fulfill_next_pending_request", fulfill)


def public_method_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RequestRouter, "on_request_routed")


def helper_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RequestRouter, "_record_queue_wait_time")


def queue_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(self: Any) -> None:
        self._pending = []

    monkeypatch.setattr(RequestRouter, "__init__", init)


def request_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve.request_router import PendingRequest

    others = {name: field for name, field in PendingRequest.__dataclass_fields__.items() if name != "metadata"}
    monkeypatch.setattr(PendingRequest, "__dataclass_fields__", others)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (no_module, "pow_2_router"),
        (no_name, "RequestRoutingContext"),
        (other_signature, "PowerOfTwoChoicesRequestRouter._fulfill_next_pending_request"),
        (public_method_gone, "PowerOfTwoChoicesRequestRouter.on_request_routed"),
        (helper_gone, "PowerOfTwoChoicesRequestRouter._record_queue_wait_time"),
        (queue_renamed, "PowerOfTwoChoicesRequestRouter._pending_requests_to_fulfill"),
        (request_without_metadata, "metadata"),
    ],
)
def test_another_ray_routes_by_load_and_says_why(
    spoil: Break, named: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(monkeypatch)
    with caplog.at_level(logging.WARNING, "service.app"):
        generator = app.build(Settings(device="cpu"))._bound_deployment.init_args[1]
    router = generator._bound_deployment._deployment_config.request_router_config
    assert router.is_default_request_router()
    [record] = caplog.records
    assert record.getMessage().startswith("requests are routed by load, as with `routing: load`. Ray ")
    assert named in record.getMessage()
