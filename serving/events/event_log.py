"""Where the server says what happened. `EventLog` itself records nothing, which is what a deployment without the table
has; `WrittenEventLog` leaves events in an outbox.

Saying it costs a few microseconds and never waits: a thread writes what has gathered, four times a second at most. What
waits is bounded in bytes; beyond that events are dropped and counted, in a metric and in an event of its own.
"""

import hashlib
import itertools
import logging
import secrets
import socket
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from serving.events.event import Event
from serving.events.event_metrics import EventMetrics
from serving.events.event_types import EventData, EventsLost
from serving.events.outbox import BUSY_SECONDS, Entry, Outbox
from serving.facts_file import on_disk
from serving.observability.logs import log_event
from serving.settings.events import EventsConfig

if TYPE_CHECKING:
    from serving.events.relay import Relay

FLUSH_SECONDS = 0.25  # between two writes; so much a process that is killed may lose
TRIM_SECONDS = 10.0
MOST_PENDING_BYTES = 16 << 20
_DAY = 86400.0

logger = logging.getLogger(__name__)


class EventLog:
    with_text = False

    def records(self, group: str, request_id: str | None = None) -> bool:
        """Whether events of this group are recorded at all, and of this request's."""
        return False

    def add(self, data: EventData, subject: str | None = None, *, name: str | None = None) -> None:
        """`subject` is the id of the request that it is of. `name` is for what several processes may see: it is
        recorded once."""

    def name_of(self, tenant: str, user: str) -> str:
        """A key or a user of the tenant's, as events have it."""
        return ""

    def text_of(self, text: str) -> str | None:
        """What somebody wrote, as events have it; None: they do not."""
        return None

    async def erase(self, tenant: str, user: str | None, dry_run: bool) -> Mapping[str, int]:
        """What there is of a user, or of the whole tenant; unless it is only looked at, it is gone. Raises
        OverloadedError."""
        return {"events": 0}

    async def run(self) -> None:
        """Ships events elsewhere, where the deployment wants it, until it is cancelled."""

    def close(self) -> None:
        """Writes what is left. Waits for it, a few seconds at most."""


class WrittenEventLog(EventLog):
    def __init__(
        self,
        config: EventsConfig,
        outbox: Outbox,
        source_name: str,
        metrics: EventMetrics,
        *,
        secret: bytes | None = None,
        relay: "Relay | None" = None,
    ) -> None:
        """`source_name` is the deployment's. `secret` is the key of hashes, where several outboxes are to have the same
        for the same name; None: the outbox's own."""
        self.with_text = config.text
        self._config = config
        self._groups = frozenset((*config.record, EventsLost.group))
        self._outbox = outbox
        self._metrics = metrics
        self._secret = hashlib.blake2b(secret or outbox.secret).digest()
        self._relay = relay
        self._source = f"weft://{quote(socket.gethostname())}/{quote(source_name)}"
        self._run_name = secrets.token_hex(8)
        self._numbers = itertools.count(1)  # without a gap but for what was lost
        self._encoder = msgspec.json.Encoder()
        self._pending: deque[Entry] = deque()
        self._pending_bytes = 0
        self._dropped = 0
        self._trimmed_unshipped = 0
        self._changing = threading.Lock()  # of what is above; held for no longer than that takes
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._trimmed_at = -TRIM_SECONDS
        if config.text:
            log_event(
                logger,
                "the event log records prompts, answers and what tools are given: events.text is on",
                level=logging.WARNING,
                outbox=str(outbox.path),
            )
        self._thread = threading.Thread(target=self._write_on, name="event-log", daemon=True)
        self._thread.start()

    def records(self, group: str, request_id: str | None = None) -> bool:
        return group in self._groups and (request_id is None or self._is_sampled(request_id))

    def add(self, data: EventData, subject: str | None = None, *, name: str | None = None) -> None:
        entry = self._entry(data, subject, name)
        with self._changing:
            if self._pending_bytes + len(entry.event) > MOST_PENDING_BYTES:
                self._dropped += 1
                self._metrics.lost.labels("queue_full").inc()
                return
            self._pending.append(entry)
            self._pending_bytes += len(entry.event)
        if not self._wake.is_set():
            self._wake.set()

    def name_of(self, tenant: str, user: str) -> str:
        if self._config.users == "plain":
            return _writable(user)
        named = f"{len(tenant)}:{tenant}:{user}".encode(errors="surrogatepass")
        return hashlib.blake2b(named, key=self._secret, digest_size=12).hexdigest()

    async def erase(self, tenant: str, user: str | None, dry_run: bool) -> Mapping[str, int]:
        names = None if user is None else (user, self.name_of(tenant, user))

        def work() -> int:
            self._write()  # what has gathered goes too
            return self._outbox.erase(tenant, names, dry_run=dry_run)

        return {"events": await on_disk(work)}

    def text_of(self, text: str) -> str | None:
        return _writable(text) if self.with_text else None

    async def run(self) -> None:
        if self._relay is not None:
            await self._relay.run()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout=2 * BUSY_SECONDS)

    def _is_sampled(self, request_id: str) -> bool:
        """The same in every process, so that of a request there is all or nothing."""
        share = self._config.sample
        if share >= 1:
            return True
        digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < share * 2.0**64

    def _entry(self, data: EventData, subject: str | None, name: str | None = None) -> Entry:
        now = time.time()
        event = Event(
            id=name or f"{self._run_name}-{next(self._numbers)}",
            source=self._source,
            type=data.type,
            time=datetime.fromtimestamp(now, UTC),
            withtext=self.with_text,
            data=data,
            subject=subject,
        )
        return Entry(id=event.id, time=now, type=data.type, event=self._encoder.encode(event))

    def _write_on(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(TRIM_SECONDS)
            self._wake.clear()
            self._write()
            self._trim()
            self._closing.wait(FLUSH_SECONDS)
            if self._pending or self._trimmed_unshipped:
                self._wake.set()
        self._write()

    def _write(self) -> None:
        """What has gathered, and a word on what is missing of it. It stays, where the outbox does not take it."""
        with self._changing:
            entries, dropped, unshipped = list(self._pending), self._dropped, self._trimmed_unshipped
            self._pending.clear()
            self._pending_bytes, self._dropped, self._trimmed_unshipped = 0, 0, 0
        told = list(entries)
        if dropped:
            told.append(self._entry(EventsLost(count=dropped, reason="queue_full"), None))
        if unshipped:
            told.append(self._entry(EventsLost(count=unshipped, reason="unshipped"), None))
        if not told:
            return
        try:
            self._outbox.append(told)
        except (OSError, sqlite3.Error) as error:
            with self._changing:
                self._pending.extendleft(reversed(entries))
                self._pending_bytes += sum(len(entry.event) for entry in entries)
                self._dropped += dropped
                self._trimmed_unshipped += unshipped
            self._fail(error)
            return
        self._metrics.written.inc(len(told))
        if self._failing:
            log_event(logger, "events written again", events=len(told))
        self._failing = False

    def _trim(self) -> None:
        now = time.monotonic()
        if self._failing or now - self._trimmed_at < TRIM_SECONDS:
            return
        self._trimmed_at = now
        reader = None if self._relay is None else self._relay.reader
        before = time.time() - self._config.retain_days * _DAY
        try:
            unshipped = self._outbox.trim(before, self._config.max_bytes, reader)
        except (OSError, sqlite3.Error) as error:
            self._fail(error)
            return
        if unshipped:
            self._metrics.lost.labels("unshipped").inc(unshipped)
            with self._changing:
                self._trimmed_unshipped += unshipped

    def _fail(self, error: Exception) -> None:
        self._metrics.failures.inc()
        if not self._failing:
            log_event(logger, "events not written", level=logging.ERROR, reason=str(error), waiting=len(self._pending))
        self._failing = True


def _writable(text: str) -> str:
    """What JSON cannot hold, halves of surrogate pairs, as question marks: an event fails nobody's request."""
    return text.encode(errors="replace").decode()
