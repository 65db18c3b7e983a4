"""A new kind of model semantics adds files to the engine, not branches to what all kinds share."""

import ast
from pathlib import Path

import pytest

import service.engine

ENGINE = Path(service.engine.__file__).parent

#: the names by which the engine knows that a model is not a plain block-diffusion model
SEMANTICS = {"shifted", "causal", "sub_block_size", "draft_masks", "opens_next"}

#: what all kinds of requests share -> the names of `SEMANTICS` that it may know
SHARED: dict[str, set[str]] = {
    "engine.py": set(),
    "thread.py": set(),
    "step.py": set(),
    "running_request.py": set(),
    "decoding_request.py": {"causal"},  # whether its blocks are filled from left to right
    "diffusion_request.py": set(),
    "lookahead.py": set(),
    "stored_blocks.py": set(),
    "forward/runner.py": {"shifted"},  # whether a graph may sample at the masks themselves
    "forward/model_forward.py": set(),
    "forward/graphs.py": set(),
    "forward/replays.py": set(),
    "forward/row_states.py": set(),
    "forward/oom_backoff.py": set(),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_files_know_no_kind_of_model(name: str) -> None:
    nodes = list(ast.walk(ast.parse((ENGINE / name).read_text("utf-8"))))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg
    }
    assert names & SEMANTICS == SHARED[name]
