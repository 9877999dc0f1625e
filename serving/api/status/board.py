"""What the status page shows: a look at the engine each second, and what this process saw in the last minute."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any

from serving.api.service import Service
from serving.engine.client import EngineStats
from serving.errors import WeftError
from serving.events.event_types import EngineRestarted
from serving.observability.recent import WINDOW_SECONDS

LOOK_SECONDS = 1.0
KEPT_LOOKS = 120
KEPT_RESTARTS = 5
ENGINE_SECONDS = 2.0  # an engine that does not answer so long is away
_QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One moment. None: not known, because the engine did not answer or nothing happened. Times are seconds."""

    running: int | None = None
    waiting: int | None = None
    page_share: float | None = None  # of the pages that exist, held by streams and pins
    prompt_rate: float | None = None  # tokens a second since the look before
    output_rate: float | None = None
    first_token_p50: float | None = None  # of the last minute, as the next three
    first_token_p99: float | None = None
    between_tokens_p50: float | None = None
    between_tokens_p99: float | None = None
    refused: int = 0  # in the last minute


class StatusBoard:
    def __init__(
        self, service: Service, now: Callable[[], float] = time.monotonic, clock: Callable[[], float] = time.time
    ) -> None:
        """`now` is monotonic, `clock` says seconds since 1970."""
        self._service = service
        self._now = now
        self._clock = clock
        self._began = now()
        self._looks: deque[Look] = deque(maxlen=KEPT_LOOKS)
        self._restarts: deque[dict[str, float | None]] = deque(maxlen=KEPT_RESTARTS)
        self._stats: EngineStats | None = None  # of the last look
        self._known: EngineStats | None = None  # of the last look that was answered
        self._known_at = 0.0
        self._looked_at: float | None = None
        self._lost_at: float | None = None
        self._batch_limit: int | None = None
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Asks the engine, and keeps what it says."""
        async with self._looking:
            stats = await self._ask()
            now = self._now()
            self._note_restart(stats, now)
            self._looks.append(self._look(stats, now))
            self._stats, self._looked_at = stats, now
            if stats is not None:
                self._known, self._known_at = stats, now

    async def shown(self) -> dict[str, Any]:
        """For JSON. Looks first where nobody has for a while."""
        if self._looked_at is None or self._now() - self._looked_at > 2 * LOOK_SECONDS + ENGINE_SECONDS:
            await self.look()
        gateway, stats, recent, now = self._service.gateway, self._stats, self._service.metrics.recent, self._now()
        first, between = recent.first_token, recent.between_tokens
        return {
            "model": self._service.card.name,
            "version": metadata.version("weft"),
            "time": self._clock(),
            "up_seconds": now - self._began,
            "state": self._state(),
            "away_seconds": None if self._lost_at is None else now - self._lost_at,
            "rung": gateway.rung.name.lower(),
            "rung_level": int(gateway.rung),
            "batch_limit": self._batch_limit,
            "running": None if stats is None else stats.running,
            "waiting": None if stats is None else _waiting(stats),
            "pages": None
            if stats is None
            else {
                "used": stats.used_pages - stats.pinned_pages,
                "pinned": stats.pinned_pages,
                "free": stats.free_pages,
            },
            "window_seconds": WINDOW_SECONDS,
            "first_token": first.quantiles(now, _QUANTILES),
            "between_tokens": between.quantiles(now, _QUANTILES),
            "refusals": dict(recent.refusals.total(now).most_common()),
            "restarts": list(self._restarts),
            "look_seconds": LOOK_SECONDS,
            "kept_looks": KEPT_LOOKS,
            "looks": {spec.name: [_short(getattr(look, spec.name)) for look in self._looks] for spec in fields(Look)},
        }

    def _state(self) -> str:
        if self._service.gateway.is_draining:
            return "draining"
        if self._stats is None:
            return "starting" if self._known is None else "away"
        return "ready" if self._stats.ready else "starting"

    async def _ask(self) -> EngineStats | None:
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                stats = await self._service.engine.stats()
                if self._known is None or stats.started_at != self._known.started_at or self._batch_limit is None:
                    self._batch_limit = (await self._service.engine.info()).max_num_seqs
                return stats
        except (WeftError, TimeoutError):  # it starts, restarts or hangs: the page says that it is away
            return None

    def _note_restart(self, stats: EngineStats | None, now: float) -> None:
        known = self._known
        if known is None:
            return
        if stats is None:
            self._lost_at = now if self._lost_at is None else self._lost_at
            return
        if stats.started_at != known.started_at:
            away = None if self._lost_at is None else now - self._lost_at
            self._restarts.appendleft({"time": stats.started_at, "away_seconds": away})
            self._record_restart(stats.started_at, away)
        self._lost_at = None

    def _record_restart(self, started_at: float, away: float | None) -> None:
        """Once, though each API process sees it."""
        events, name = self._service.events, self._service.card.name
        if events.records(EngineRestarted.group):
            restarted = EngineRestarted(started_at=started_at, away_seconds=away)
            events.add(restarted, name, name=f"engine-{name}-{started_at}")

    def _look(self, stats: EngineStats | None, now: float) -> Look:
        recent = self._service.metrics.recent
        first = recent.first_token.quantiles(now, _QUANTILES) or (None, None)
        between = recent.between_tokens.quantiles(now, _QUANTILES) or (None, None)
        seen = {
            "first_token_p50": first[0],
            "first_token_p99": first[1],
            "between_tokens_p50": between[0],
            "between_tokens_p99": between[1],
            "refused": recent.refusals.total(now).total(),
        }
        if stats is None:
            return Look(**seen)
        pages = stats.used_pages + stats.free_pages
        return Look(
            running=stats.running,
            waiting=stats.waiting,
            page_share=stats.used_pages / pages if pages else 0.0,
            prompt_rate=self._rate(stats, "prompt_tokens", now),
            output_rate=self._rate(stats, "generation_tokens", now),
            **seen,
        )

    def _rate(self, stats: EngineStats, counter: str, now: float) -> float | None:
        known, passed = self._known, now - self._known_at
        if known is None or known.started_at != stats.started_at or passed <= 0:
            return None
        return (getattr(stats, counter) - getattr(known, counter)) / passed


def _waiting(stats: EngineStats) -> dict[str, int]:
    classes = {
        "interactive": stats.waiting_interactive,
        "standard": stats.waiting_standard,
        "batch": stats.waiting_batch,
    }
    return classes | {"other": max(0, stats.waiting - sum(classes.values()))}


def _short(value: float | None) -> float | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value
