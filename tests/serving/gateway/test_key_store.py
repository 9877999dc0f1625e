import hashlib
import sqlite3
from pathlib import Path

import pytest

from serving.errors import ConfigError, NotFoundError
from serving.gateway import api_key
from serving.gateway.api_key import ApiKey, hash_secret, new_key, parse_key
from serving.gateway.key_store import KeyStore
from serving.gateway.ledger import open_ledger
from serving.gateway.principal import Scope
from tests.serving.gateway.clock import Clock


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> KeyStore:
    return KeyStore(tmp_path / "keys.sqlite", now=clock)


def test_a_key_reads_as_it_was_written_and_nothing_else_does() -> None:
    key = new_key()
    assert parse_key(key.text) == key
    assert len(set(key.secret)) > 10
    for text in ("", "weft_", key.text[:-1], key.text + "x", key.text.upper(), key.text.replace("weft", "left"), "\n"):
        assert parse_key(text) is None
    assert key.secret not in repr(key)


def test_a_secret_is_nowhere_in_the_database_but_its_hash_is(store: KeyStore, tmp_path: Path) -> None:
    key = store.create("acme", [Scope.INFERENCE])
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key.secret.encode() not in written
    assert hashlib.sha256(key.secret.encode()).digest() in written


def test_the_database_is_its_owners_alone(store: KeyStore, tmp_path: Path) -> None:
    assert (tmp_path / "keys.sqlite").stat().st_mode & 0o077 == 0


def test_only_the_right_secret_is_verified(store: KeyStore) -> None:
    key, other = store.create("acme", [Scope.INFERENCE, Scope.USAGE], name="ci"), store.create("b", [Scope.ADMIN])
    record = store.verify(key)
    assert record is not None
    assert (record.tenant, record.name) == ("acme", "ci")
    assert record.scopes == {Scope.INFERENCE, Scope.USAGE}
    assert store.verify(ApiKey(key.id, other.secret)) is None
    assert store.verify(ApiKey("aaaaaaaaaaaa", key.secret)) is None


def test_each_comparison_is_of_whole_hashes_in_constant_time(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By construction: known id or not, right or wrong, two comparisons by hmac.compare_digest of 32 bytes each."""
    key = store.create("acme", [Scope.INFERENCE])
    compared: list[tuple[int, int]] = []
    monkeypatch.setattr(
        api_key.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b, raising=True
    )
    for asked in (key, ApiKey(key.id, new_key().secret), new_key()):
        compared.clear()
        store.verify(asked)
        assert compared == [(32, 32), (32, 32)]


def test_after_a_rotation_both_secrets_are_good_and_later_the_new_one_alone(store: KeyStore, clock: Clock) -> None:
    old = store.create("acme", [Scope.INFERENCE])
    new = store.rotate(old.id, overlap_seconds=60)
    assert new.id == old.id
    assert store.verify(old) is not None
    assert store.verify(new) is not None
    clock.pass_(60)
    assert store.verify(old) is None
    assert store.verify(new) is not None


def test_a_revoked_key_is_gone_with_the_next_request_also_for_another_process(store: KeyStore, tmp_path: Path) -> None:
    key = store.create("acme", [Scope.INFERENCE])
    store.rotate(key.id, overlap_seconds=60)
    command = KeyStore(tmp_path / "keys.sqlite")
    command.revoke(key.id)
    command.close()
    assert store.verify(key) is None
    store.disable(key.id, disabled=False)  # does not bring it back
    assert store.verify(key) is None


def test_a_disabled_key_can_be_enabled_again(store: KeyStore) -> None:
    key = store.create("acme", [Scope.INFERENCE])
    store.disable(key.id, disabled=True)
    record = store.verify(key)
    assert record is not None
    assert record.disabled
    store.disable(key.id, disabled=False)
    record = store.verify(key)
    assert record is not None
    assert not record.disabled


def test_a_key_that_is_not_there_cannot_be_changed(store: KeyStore) -> None:
    for change in (store.revoke, lambda name: store.rotate(name, overlap_seconds=1)):
        with pytest.raises(NotFoundError):
            change("nobodyshouldk")


def test_records_list_every_key_without_a_hash(store: KeyStore, clock: Clock) -> None:
    store.create("acme", [Scope.INFERENCE], expires=clock.now + 5)
    clock.pass_(1)
    store.create("other", [Scope.ADMIN])
    first, second = store.records()
    assert (first.tenant, second.tenant) == ("acme", "other")
    assert not first.is_expired(clock.now)
    assert first.is_expired(clock.now + 4)
    assert not any(isinstance(value, bytes) for value in (getattr(first, name) for name in first.__slots__))


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, and no keys" * 100)
    with pytest.raises(ConfigError, match="not a database of keys"):
        KeyStore(path)
    assert path.read_text().startswith("these are")
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE keys (id TEXT)")
    with pytest.raises(ConfigError):
        KeyStore(tmp_path / "other.sqlite")


def test_a_hash_needs_no_salt_because_secrets_are_256_random_bits() -> None:
    assert len({hash_secret(new_key().secret) for _ in range(100)}) == 100


def test_a_file_that_is_something_else_is_left_as_it_was(tmp_path: Path) -> None:
    notes, ledger = tmp_path / "notes", tmp_path / "usage.sqlite"
    notes.write_text("notes" * 1000)
    open_ledger(ledger).close()
    for path in (notes, ledger):
        path.chmod(0o644)
        before = path.read_bytes()
        with pytest.raises(ConfigError, match="not a database of keys"):
            KeyStore(path)
        assert path.stat().st_mode & 0o777 == 0o644
        assert path.read_bytes() == before
