"""`mrp-serve key`."""

import hashlib

import yaml

from service.api.admission.keys import KeyRing
from service.settings import Settings


def test_the_line_lets_the_key_in(run, capsys, tmp_path):
    assert run("key", "team-a") == 0
    key, line = capsys.readouterr().out.splitlines()
    assert yaml.safe_load(line) == [{"name": "team-a", "sha256": hashlib.sha256(key.encode()).hexdigest()}]
    path = tmp_path / "keys.yaml"
    path.write_text(line, "utf-8")
    found = KeyRing.load(Settings(api_keys_file=path)).find(key.encode())
    assert found is not None
    assert found.name == "team-a"


def test_every_key_is_another(run, capsys):
    assert run("key") == run("key") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(set(lines)) == 4
    assert len(lines[0]) > 40


def test_a_name_must_be_one(run, capsys):
    assert run("key", "a b") == 1
    assert "a key's name is 'a b', allowed are 1 to 64 letters" in capsys.readouterr().err
