"""The durable streams of a tenant, erased from the log."""

import asyncio
from collections.abc import Mapping

import msgspec

from serving.sessions.generation_log import GenerationLog
from serving.sessions.logged_generation import decode_admitted

_ENDS_WITHIN = 10.0  # seconds in which a living process ends a stream that it is asked to
_LOOK_SECONDS = 0.1


async def erase_streams(log: GenerationLog, tenant: str, dry_run: bool) -> Mapping[str, int]:
    """What there is of a tenant; unless it is only looked at, it is gone. Those that run are cancelled first: who runs
    one would write it anew. Raises StreamLogError."""
    mine = [name for name in await log.entries() if await _is_of(log, name, tenant)]
    if not dry_run:
        for name in mine:
            await log.cancel(name)
        for name in mine:
            await _end(log, name)
        await log.drop(mine)
    return {"streams": len(mine)}


async def _is_of(log: GenerationLog, name: str, tenant: str) -> bool:
    data = await log.admitted(name)
    try:
        return data is not None and decode_admitted(data).owner.startswith(f"{len(tenant)}:{tenant}:")
    except msgspec.DecodeError:  # of another version, and unreadable for whoever follows it too: it goes with its time
        return False


async def _end(log: GenerationLog, name: str) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time() + _ENDS_WITHIN
    while loop.time() < last:
        page = await log.read(name, 0)
        if page is None or page.ended:
            return
        await asyncio.sleep(_LOOK_SECONDS)
