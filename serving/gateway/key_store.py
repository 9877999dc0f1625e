"""API keys in SQLite: hashes of secrets, whose they are, what they may, until when.

A key has a secret, and for a while after a rotation the one before it. Each request looks its key up, so that a key
that is revoked is refused from then on; write-ahead logging lets readers pass while a command writes.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.errors import ConfigError, NotFoundError
from serving.facts_file import make_private, refuse_other_database
from serving.gateway.api_key import ApiKey, hash_secret, new_key, new_secret, same_hash
from serving.gateway.principal import Scope

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    hash BLOB NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    disabled INTEGER NOT NULL DEFAULT 0,
    old_hash BLOB,
    old_expires REAL
) STRICT, WITHOUT ROWID
"""
_BUSY_SECONDS = 5.0
_NO_HASH = bytes(32)  # what the secret of an unknown key is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """Times are seconds since 1970."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created: float
    expires: float | None
    disabled: bool
    rotating_until: float | None  # so long the secret before this one is good

    def is_expired(self, now: float) -> bool:
        return self.expires is not None and self.expires <= now


class KeyStore:
    """Raises ConfigError where the file is no such database; sqlite3.Error where it cannot be read or written."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        try:
            make_private(path)
            self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            refuse_other_database(self._db, path, "keys", kind="database of keys", setting="auth.keys")
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(_SCHEMA)
            self._db.row_factory = sqlite3.Row
            self._db.execute("SELECT id, hash, old_hash, scopes FROM keys LIMIT 1")
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"{path}: not a database of keys: {error}", param="auth.keys") from error

    def close(self) -> None:
        self._db.close()

    def verify(self, key: ApiKey) -> KeyRecord | None:
        """The record where the secret is right, be the key disabled or expired or not. Unknown ids take as long."""
        row = self._row(key.id)
        given = hash_secret(key.secret)
        right = same_hash(given, _NO_HASH if row is None else row["hash"])
        old = None if row is None or (row["old_expires"] or 0.0) <= self._now() else row["old_hash"]
        right |= same_hash(given, _NO_HASH if old is None else old)
        return _record(row) if right and row is not None else None

    def create(self, tenant: str, scopes: Iterable[Scope], *, name: str = "", expires: float | None = None) -> ApiKey:
        """The only moment at which the secret is to be had."""
        key = new_key()
        words = " ".join(sorted(scope.value for scope in scopes))
        self._db.execute(
            "INSERT INTO keys (id, tenant, name, scopes, hash, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (key.id, tenant, name, words, hash_secret(key.secret), self._now(), expires),
        )
        return key

    def rotate(self, key_id: str, *, overlap_seconds: float) -> ApiKey:
        """A new secret; the present one stays good for the overlap. Raises NotFoundError."""
        secret = new_secret()
        self._change(
            key_id,
            "UPDATE keys SET old_hash = hash, old_expires = ?, hash = ? WHERE id = ?",
            (self._now() + overlap_seconds, hash_secret(secret), key_id),
        )
        return ApiKey(key_id, secret)

    def revoke(self, key_id: str) -> None:
        """For good: neither of its secrets is kept. Raises NotFoundError."""
        self._change(
            key_id,
            "UPDATE keys SET disabled = 1, hash = zeroblob(0), old_hash = NULL, old_expires = NULL WHERE id = ?",
            (key_id,),
        )

    def disable(self, key_id: str, *, disabled: bool) -> None:
        """Until it is enabled again. Raises NotFoundError."""
        self._change(key_id, "UPDATE keys SET disabled = ? WHERE id = ?", (int(disabled), key_id))

    def records(self) -> list[KeyRecord]:
        return [_record(row) for row in self._db.execute("SELECT * FROM keys ORDER BY created, id")]

    def _row(self, key_id: str) -> sqlite3.Row | None:
        return self._db.execute("SELECT * FROM keys WHERE id = ?", (key_id,)).fetchone()

    def _change(self, key_id: str, statement: str, values: tuple[object, ...]) -> None:
        if self._db.execute(statement, values).rowcount != 1:
            raise NotFoundError(f"there is no key {key_id[:32]!r}", param="id", code="key_not_found")


def _record(row: sqlite3.Row) -> KeyRecord:
    return KeyRecord(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        scopes=frozenset(Scope(word) for word in row["scopes"].split()),
        created=row["created"],
        expires=row["expires"],
        disabled=bool(row["disabled"]),
        rotating_until=row["old_expires"],
    )
