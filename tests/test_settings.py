"""The sources of settings, their precedence, and the errors of wrong ones."""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.errors import SettingsError
from service.settings.settings import PREFIX, SECTIONS, Settings, section_of, torch_profiler_dir, torch_threads
from service.settings.sources import ALIASES


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text, "utf-8")
    return path


def hashed(*keys: str) -> tuple[str, ...]:
    return tuple("sha256:" + hashlib.sha256(key.encode()).hexdigest() for key in keys)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path, "port: 1001\nmax_num_seqs: 1001\nmax_rows: 1001\n")
    monkeypatch.setenv("MRP_SERVE_CONFIG", str(path))
    monkeypatch.setenv("MRP_SERVE_PORT", "1002")
    monkeypatch.setenv("MRP_SERVE_MAX_NUM_SEQS", "1002")
    settings = Settings(port=1003)
    assert (settings.port, settings.max_num_seqs, settings.max_rows, settings.max_waiting) == (1003, 1002, 1001, 256)


def test_a_file_may_be_json(tmp_path: Path) -> None:
    path = file(tmp_path, json.dumps({"port": 1001, "api_keys": ["a", "b"]}))
    settings = Settings(config=path)
    assert (settings.port, settings.api_keys) == (1001, hashed("a", "b"))


def test_a_deployment_files_args_are_settings() -> None:
    assert Settings.model_validate({"port": 1001}).port == 1001
    with pytest.raises(SettingsError, match="did you mean 'port'"):
        Settings.model_validate({"prot": 1001})


def test_keys_are_kept_as_hashes_only() -> None:
    settings = Settings(api_keys=["first", "sha256:" + hashed("second")[0][7:].upper(), "schlüssel"])
    assert settings.api_keys == hashed("first", "second", "schlüssel")
    assert "first" not in settings.model_dump_json()
    assert b"first" not in pickle.dumps(settings)
    assert Settings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize("wrong", ["sha256:", "sha256:first", "sha256:" + "g" * 64, "sha256:" + "a" * 63])
def test_a_hash_must_be_one(wrong: str) -> None:
    with pytest.raises(SettingsError, match="not 64 hexadecimal digits") as caught:
        Settings(api_keys=wrong)
    assert "first" not in str(caught.value)


def test_keys_are_never_shown() -> None:
    assert "first" not in repr(Settings(api_keys="first"))
    with pytest.raises(SettingsError) as caught:
        Settings(api_keys=["first", 5])
    assert "first" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "slots"),
    [({}, 80), ({"device": "cuda"}, 320), ({"max_num_seqs": 8}, 10), ({"max_num_seqs": "auto"}, 80)],
)
def test_slots_follow_the_device_or_max_num_seqs(values: dict[str, Any], slots: int) -> None:
    assert Settings(**values).slots == slots


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="empty key"):
        Settings(api_keys="a,,b")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prot": 1}, "'prot' is not a setting; did you mean 'port'?"),
        ({"port": 65536}, "port is 65536"),
        ({"dtype": "int8"}, "dtype is 'int8'.*'bfloat16'"),
        ({"quantization": "int8"}, "quantization is 'int8'.*'fp8'.*'w8a8'"),
        ({"max_rows": "many"}, "max_rows is 'many'"),
        ({"default_mode": "fast"}, "default_mode is 'fast'.*'speculative'"),
        ({"request_timeout_s": "nan"}, "request_timeout_s is 'nan': .*finite"),
        ({"config": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is 'fp8': Input should be 'auto' or 'int8'"),
        ({"num_replicas": 0}, "num_replicas is 0, which is allowed with max_replicas only"),
        ({"online_mrp_dir": "m", "api_keys": "a,b"}, "with API keys, share_prefixes_between_keys must be true"),
        ({"online_mrp_dir": "m", "api_keys_file": "k"}, "with API keys, share_prefixes_between_keys must be true"),
        ({"online_mrp_dir": "m", "quantization": "fp8"}, "MRP learns from wide matrices only"),
        ({"num_replicas": 3, "max_replicas": 2}, r"max_replicas is 2, allowed is num_replicas \(3\) or more"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(**values)


def test_an_unknown_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRP_SERVE_MAX_NUM_SEQ", "3")
    with pytest.raises(SettingsError, match=r"environment.*'max_num_seq'.*did you mean 'max_num_seqs'"):
        Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [("prot: 1", "did you mean 'port'"), ("1: 2", "name: value"), ("a: [", "is not YAML"), ("port: x", "port is 'x'")],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(config=file(tmp_path, text))


def test_settings_are_frozen_and_cross_processes() -> None:
    settings = Settings(port=1001, api_keys="a")
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1002  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_revision_belongs_to_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = Settings(model="owner/model", revision="v1")
    assert (pinned.model, pinned.revision, pinned.model_name) == ("owner/model@v1", None, "model")
    assert Settings(model="owner/model@v1", revision="v1") == pinned == Settings.model_validate(pinned.model_dump())
    monkeypatch.setenv("MRP_SERVE_MODEL", "owner/model")
    assert Settings(revision="v1") == pinned
    for model, reason in (("owner/model@v2", "model has the revision 'v2'"), (str(tmp_path), "model is the folder")):
        with pytest.raises(SettingsError, match=f"revision is 'v1', but {reason}"):
            Settings(model=model, revision="v1")


def test_sections_stand_in_the_order_of_the_settings() -> None:
    firsts = list(SECTIONS.values())
    assert firsts == sorted(firsts, key=list(Settings.model_fields).index)
    assert firsts[0] == next(iter(Settings.model_fields))
    assert [section_of(name) for name in ("model", "max_num_seqs", "admin_keys")] == ["Model", "Speed", "Security"]


def test_the_served_name() -> None:
    assert Settings(model="/some/where/model/").model_name == "model"
    assert Settings(model="owner/model@1", served_model_name="mine").model_name == "mine"


def test_the_shares_of_all_ingresses_are_at_least_the_whole() -> None:
    settings = Settings(api_server_count=3)
    assert [settings.per_ingress(whole) for whole in (1, 3, 80, 81)] == [1, 1, 27, 27]
    assert Settings().per_ingress(80) == 80


@pytest.mark.parametrize(
    ("values", "lowest", "highest", "autoscaled"),
    [
        ({"num_replicas": 3}, 3, 3, False),
        ({"num_replicas": 2, "max_replicas": 2}, 2, 2, False),
        ({"num_replicas": 0, "max_replicas": 1}, 0, 1, True),
    ],
)
def test_the_bounds_of_replicas(values: dict[str, Any], lowest: int, highest: int, autoscaled: bool) -> None:
    settings = Settings(**values)
    assert (settings.num_replicas, settings.max_num_replicas, settings.autoscaled) == (lowest, highest, autoscaled)


@pytest.mark.parametrize(("alias", "setting"), ALIASES.items())
def test_names_of_other_servers_are_settings(
    alias: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: dict[str, Any] = {"deterministic": True, "api_keys": "a", "otlp_endpoint": "http://collector:4318"}
    text = texts.get(setting, 7)
    value = hashed("a") if setting == "api_keys" else text
    path = file(tmp_path, json.dumps({alias: text}))
    assert getattr(Settings(**{alias: text}), setting) == getattr(Settings(config=path), setting) == value
    monkeypatch.setenv(f"MRP_SERVE_{alias.upper()}", str(text))
    assert getattr(Settings(), setting) == value != getattr(Settings.model_construct(), setting)


def test_two_names_of_a_setting_in_one_source_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(max_num_seqs=7, max_running_requests=7).max_num_seqs == 7
    with pytest.raises(SettingsError, match="max_running_requests is 8, and another name of max_num_seqs says 7"):
        Settings(max_num_seqs=7, max_running_requests=8)
    with pytest.raises(SettingsError, match="api_key is …, and another name of api_keys says …"):
        Settings(api_keys="secret", api_key="other")
    monkeypatch.setenv("MRP_SERVE_MAX_RUNNING_REQUESTS", "9")
    assert Settings(max_num_seqs=7).max_num_seqs == 7  # a flag beats the environment, whatever the names


def test_variables_of_processes_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (torch_threads(), torch_profiler_dir()) == (None, None)
    monkeypatch.setenv("MRP_SERVE_TORCH_THREADS", "3")
    monkeypatch.setenv("MRP_SERVE_TORCH_PROFILER_DIR", "traces")
    assert (torch_threads(), torch_profiler_dir()) == (3, Path("traces"))
    assert Settings() == Settings(port=8000)
    for name in ("torch_threads", "torch_profiler_dir", "log_pipe"):
        with pytest.raises(SettingsError, match="is not a setting"):
            Settings(**{name: 3})


@pytest.mark.parametrize("threads", ["0", "-1", "many", ""])
def test_a_wrong_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    monkeypatch.setenv("MRP_SERVE_TORCH_THREADS", threads)
    with pytest.raises(SettingsError, match=f"MRP_SERVE_TORCH_THREADS is '{threads}', expected a whole number"):
        torch_threads()
