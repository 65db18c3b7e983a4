"""API keys: their sources, the lookup, errors of a wrong file, and that no key is ever shown."""

import hashlib
import hmac
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.admission.keys import ANONYMOUS, ApiKey, KeyRing
from service.errors import SettingsError, Unauthorized
from service.settings.settings import Settings

SECRET = "mrp-secret"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def entry(name: str = "team", key: str = SECRET, **more: Any) -> dict[str, Any]:
    return {"name": name, "sha256": digest(key), **more}


@pytest.fixture
def ring(tmp_path: Path):
    def load(content: object, **settings: Any) -> KeyRing:
        path = tmp_path / "keys.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), "utf-8")
        path.chmod(0o600)
        return KeyRing.load(Settings(api_keys_file=path, **settings))

    return load


class TestFinding:
    def test_by_name(self, ring) -> None:
        limited = entry("b", "two", weight=2, requests_per_minute=3, tokens_per_minute=4)
        keys = ring([entry("a", "one"), limited], api_keys="three,sha256:" + digest("four"))
        names_by_secret = {}
        for secret in ("one", "two", "three", "four"):
            api_key = keys.find(secret.encode())
            names_by_secret[secret] = api_key.name
        assert names_by_secret == {"one": "a", "two": "b", "three": "key-1", "four": "key-2"}
        second = keys.find(b"two")
        assert (second.weight, second.requests_per_minute, second.tokens_per_minute) == (2.0, 3, 4)
        first = keys.find(b"one")
        assert (first.weight, first.requests_per_minute, first.tokens_per_minute) == (1.0, None, None)

    @pytest.mark.parametrize("secret", [b"", b"on", b"one ", b"ONE", b"\xff\xfe\x00", digest("one").encode()])
    def test_nothing_else(self, ring, secret: bytes) -> None:
        problem = "wrong" if secret else "missing"
        with pytest.raises(Unauthorized, match=f"the API key is {problem}; send `Authorization: Bearer <key>`"):
            ring([entry("a", "one")]).find(secret)

    @pytest.mark.parametrize("secret", [b"", b"anything"])
    def test_without_keys_everybody_is_one_tenant(self, secret: bytes) -> None:
        api_key = KeyRing.load(Settings()).find(secret)
        assert (api_key.name, api_key.weight) == (ANONYMOUS, 1.0)

    def test_all_are_compared_whichever_it_is(self, ring, monkeypatch: pytest.MonkeyPatch) -> None:
        keys, compared = ring([entry(str(number), str(number)) for number in range(5)]), []
        real = hmac.compare_digest
        monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
        for secret in (b"0", b"4", b"none"):
            with suppress(Unauthorized):
                keys.find(secret)
        assert len(compared) == 15


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("[]", "must be a list of keys"),
            ("team: x", "must be a list of keys"),
            (f"- [{SECRET}", "is not YAML (line "),
            ([SECRET], "entry 1: the entry: Input should be"),
            ([{"name": "a"}], "entry 1: sha256: Field required"),
            ([{"name": "a", "sha256": SECRET}], "entry 1: sha256: 64 hexadecimal digits are expected"),
            ([entry("a"), entry("b", "other", wieght=2)], "entry 2: 'wieght' is not a field; did you mean 'weight'?"),
            ([entry("a b")], "name: 1 to 64 letters"),
            ([entry(weight=0)], "weight: Input should be greater than 0"),
            ([entry(tokens_per_minute="many")], "tokens_per_minute: Input should be a valid integer"),
            ([entry("a", "one"), entry("a", "two")], "the name 'a' is given twice"),
            ([entry("a", "one"), entry("b", "one")], "the key of 'a' and 'b' is given twice"),
        ],
    )
    def test_that_are_wrong(self, ring, content: object, reason: str) -> None:
        with pytest.raises(SettingsError) as caught:
            ring(content)
        assert reason in caught.value.message
        assert SECRET not in caught.value.message
        assert digest(SECRET) not in caught.value.message

    def test_a_key_that_is_in_both_slots(self, ring) -> None:
        with pytest.raises(SettingsError, match="the key of 'key-1' and 'team' is given twice"):
            ring([entry()], api_keys=SECRET)
        with pytest.raises(SettingsError, match="the name 'key-1' is given twice"):
            ring([entry("key-1")], api_keys="other")

    def test_that_are_not_there_or_not_text(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot be read: No such file"):
            KeyRing.load(Settings(api_keys_file=tmp_path / "no.yaml"))
        (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe\xff")
        with pytest.raises(SettingsError, match="it is not UTF-8"):
            KeyRing.load(Settings(api_keys_file=tmp_path / "odd.yaml"))

    def test_that_everybody_can_read(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = tmp_path / "keys.yaml"
        path.write_text(yaml.safe_dump([entry()]), "utf-8")
        for mode, warned in ((0o600, False), (0o644, True)):
            path.chmod(mode)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                KeyRing.load(Settings(api_keys_file=path))
            assert ("chmod 600" in caplog.text) == warned


class TestRefreshing:
    def test_a_changed_file_changes_the_keys(self, ring, tmp_path: Path) -> None:
        keys = ring([entry("a", "one")], api_keys="fixed")
        assert not keys.refresh()
        ring([entry("b", "two", weight=2), entry("c", "three")])
        assert keys.refresh()
        assert not keys.refresh()
        assert [keys.find(secret).name for secret in (b"fixed", b"two", b"three")] == ["key-1", "b", "c"]
        with pytest.raises(Unauthorized):
            keys.find(b"one")

    def test_a_secret_of_kubernetes_replaces_a_link(self, tmp_path: Path) -> None:
        """Both files may have one size and one time."""
        for name, key in (("old", "one"), ("new", "two")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "keys.yaml").write_text(yaml.safe_dump([entry(key=key)]), "utf-8")
            os.utime(tmp_path / name / "keys.yaml", ns=(0, 0))
        (tmp_path / "data").symlink_to("old")
        keys = KeyRing.load(Settings(api_keys_file=tmp_path / "data" / "keys.yaml"))
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").rename(tmp_path / "data")
        assert keys.refresh()
        assert keys.find(b"two").name == "team"

    @pytest.mark.parametrize("content", ["", "[", "- {name: a}", None])
    def test_a_wrong_file_changes_no_key(self, ring, tmp_path: Path, content: str | None, caplog) -> None:
        keys, path = ring([entry()]), tmp_path / "keys.yaml"
        path.unlink() if content is None else path.write_text(content, "utf-8")
        assert not keys.refresh()
        assert not keys.refresh()
        assert keys.find(SECRET.encode()).name == "team"
        assert caplog.text.count("the API keys stay as they are: api_keys_file") == 1
        ring([entry("later")])
        assert keys.refresh()


class TestSecrecy:
    def test_nothing_shows_a_key_or_its_hash(self, ring) -> None:
        keys = ring([entry()])
        api_key = keys.find(SECRET.encode())
        for representation in (repr(keys), str(keys), repr(api_key), repr(KeyRing([ApiKey("a", b"x" * 32)]))):
            assert SECRET not in representation
            assert digest(SECRET) not in representation
            assert "xxx" not in representation
