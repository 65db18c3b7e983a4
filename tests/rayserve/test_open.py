"""A service behind Serve's proxies that has no keys says so in its log."""

import pytest

from service.rayserve.deployments import open_warning
from service.settings.settings import Settings


@pytest.mark.parametrize(
    ("keys", "warns"), [({}, True), ({"api_keys": "a"}, False), ({"api_keys_file": "keys.yaml"}, False)]
)
def test_a_service_without_keys_warns(keys: dict[str, str], warns: bool) -> None:
    assert ("no API keys are set" in open_warning(Settings(**keys))) is warns
