"""`mrp-serve key`."""

import base64
import hashlib

import yaml

from service.admission.keys import KeyRing
from service.settings.settings import Settings


def test_the_line_lets_the_key_in(run, capsys, tmp_path):
    assert run("key", "team-a") == 0
    key, line = capsys.readouterr().out.splitlines()
    assert yaml.safe_load(line) == [{"name": "team-a", "sha256": hashlib.sha256(key.encode()).hexdigest()}]
    path = tmp_path / "keys.yaml"
    path.write_text(line, "utf-8")
    api_key = KeyRing.load(Settings(api_keys_file=path)).find(key.encode())
    assert api_key is not None
    assert api_key.name == "team-a"


def test_every_key_is_another(run, capsys):
    """Keys have 256 random bits, so no key tells anything about another one."""
    assert [run("key") for _ in range(20)] == [0] * 20
    keys = capsys.readouterr().out.splitlines()[::2]
    drawn = [base64.urlsafe_b64decode(key.removeprefix("mrp-") + "=") for key in keys]
    assert {len(secret) for secret in drawn} == {32}
    assert all(len({secret[index] for secret in drawn}) > 10 for index in range(32)), "a byte that is hardly drawn"


def test_a_name_must_be_one(run, capsys):
    assert run("key", "a b") == 1
    assert "a key's name is 'a b', allowed are 1 to 64 letters" in capsys.readouterr().err
