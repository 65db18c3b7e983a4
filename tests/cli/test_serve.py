"""What `mrp-serve serve` refuses before it starts anything."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("fewest", [0, 1])
def test_one_machines_service_is_of_a_fixed_size(run, capsys, fewest):
    assert run("serve", "--num-replicas", fewest, "--max-replicas", 2) == 1
    said = capsys.readouterr().err
    assert "max_replicas is 2: this program runs a fixed number of replicas" in said
    assert "`serve run deploy/serve.yaml`" in said
