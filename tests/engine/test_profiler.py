"""The setting `torch_profiler_dir`: one trace of some steps, and the same tokens."""

import gzip
import json
from pathlib import Path

import pytest

from service.decode.modes import Speculative
from service.engine import Engine, EngineConfig, GenerationRequest
from service.engine.forward import profiler
from service.errors import SettingsError
from service.model import load_checkpoint
from tests.tiny import GOLDEN, GOLDEN_NAMES

PROMPT = (311, 17, 402)


def decoded(config: EngineConfig) -> list[tuple[int, ...]]:
    engine = Engine(load_checkpoint(GOLDEN / GOLDEN_NAMES[0]), config)
    requests = [GenerationRequest(str(n), (*PROMPT, n), Speculative(2), max_new_tokens=64) for n in range(2)]
    return [completion.token_ids for completion in engine.generate(requests)]


def traces(folder: Path) -> list[Path]:
    return sorted(folder.glob("engine-*.pt.trace.json.gz"))


def test_one_trace_of_some_steps_is_written_and_the_tokens_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "_SKIPPED", 2)
    monkeypatch.setattr(profiler, "_TRACED", 5)
    folder = tmp_path / "traces" / "of a day"
    assert decoded(EngineConfig(torch_profiler_dir=folder)) == decoded(EngineConfig())
    [trace] = traces(folder)
    text = gzip.decompress(trace.read_bytes()).decode()
    names = [event.get("name", "") for event in json.loads(text)["traceEvents"]]
    steps = {name for name in names if name.startswith("ProfilerStep#")}
    assert len(steps) == 5
    assert any(name.startswith("aten::") for name in names)
    assert not any(str(token) in names for token in PROMPT)


def test_two_engines_of_a_process_trace_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "_SKIPPED", 1)
    monkeypatch.setattr(profiler, "_TRACED", 2)
    checkpoint = load_checkpoint(GOLDEN / GOLDEN_NAMES[0])
    engines = [Engine(checkpoint, EngineConfig(torch_profiler_dir=tmp_path / str(n))) for n in range(2)]
    for engine in engines:
        engine.submit(GenerationRequest("x", PROMPT, Speculative(2), max_new_tokens=64))
    counts = []
    while any(engine.has_work for engine in engines):
        for engine in engines:
            engine.step()
        counts.append([len(traces(tmp_path / str(n))) for n in range(2)])
    assert [1, 0] in counts
    assert counts[-1] == [1, 1]


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SettingsError, match=r"torch_profiler_dir is .*file, which cannot be a folder: File exists"):
        decoded(EngineConfig(torch_profiler_dir=file))
