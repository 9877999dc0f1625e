"""The end of containers: of those that have expired, of what a kill left behind, and of a tenant's or a user's."""

import sqlite3
import time
from collections.abc import Mapping

from serving.api.containers import container_rows as rows
from serving.api.containers.container_store import ContainerStore
from serving.facts_file import on_disk

ORPHAN_SECONDS = 3600.0  # after which a content that no row names is not being written any more


class ContainerPurge:
    def __init__(self, store: ContainerStore) -> None:
        self._store = store

    async def apply(self) -> None:
        """Raises OverloadedError."""
        await on_disk(self._drop_expired)
        await on_disk(self._drop_orphans)

    def _drop_expired(self) -> None:
        with self._store.facts.transaction() as connection:
            query = f"SELECT id FROM containers WHERE NOT ({rows.IS_LIVE})"
            expired = connection.execute(query, {"now": self._store.now()}).fetchall()
            dropped = [content for (name,) in expired for content in rows.delete(connection, name)]
        self._store.unlink(dropped)

    def _drop_orphans(self) -> None:
        found = [path for path in self._store.folder.iterdir() if path.stat().st_mtime < time.time() - ORPHAN_SECONDS]
        if not found:
            return
        with self._store.facts.transaction() as connection:
            known = {content for (content,) in connection.execute("SELECT content FROM container_files").fetchall()}
        self._store.unlink(path.name for path in found if path.name not in known)

    async def erase(self, tenant: str, user: str | None, dry_run: bool) -> Mapping[str, int]:
        """A tenant's, or a user's: the containers that were made for him, and the files of others that were written in
        his turns. Raises OverloadedError."""

        def work(connection: sqlite3.Connection) -> Mapping[str, int]:
            given = {"tenant": tenant, "user": user}
            query = "SELECT id FROM containers WHERE tenant = :tenant AND (:user IS NULL OR user = :user)"
            containers = [name for (name,) in connection.execute(query, given).fetchall()]
            query = (
                "SELECT id, content, bytes FROM container_files WHERE container_id IN (SELECT id FROM containers "
                "WHERE tenant = :tenant AND (:user IS NULL OR user = :user)) OR (user = :user AND container_id IN "
                "(SELECT id FROM containers WHERE tenant = :tenant))"
            )
            files = connection.execute(query, given).fetchall()
            for file_id, content, _ in () if dry_run else files:
                # Before the row: what a kill interrupts is still known, and goes when it is run again.
                self._store.unlink([content])
                rows.delete_file(connection, file_id)
            for name in () if dry_run else containers:
                rows.delete(connection, name)
            sizes = sum(size for _, _, size in files)
            return {"containers": len(containers), "files": len(files), "bytes": sizes}

        found = await self._store.facts.run(work)
        if not dry_run:
            await self._store.facts.purge()
        return found
