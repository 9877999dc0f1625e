"""The end of a tenant's, or of one of its users', data: every place that holds some is asked, each by its own word.

What a place does not tell apart by users stays where one user is erased, and the report says so: it is all of the
tenant's, or none.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.errors import WeftError
from serving.observability.logs import log_failure

logger = logging.getLogger(__name__)

# Of a tenant, and of one of its users or (None) of all. What there is, in words and numbers; with the last argument it
# stays, without it is gone, from the disk too.
Erase = Callable[[str, str | None, bool], Awaitable[Mapping[str, int]]]


@dataclass(frozen=True, slots=True)
class Holder:
    """A place that holds data of persons."""

    name: str
    erase: Erase  # raises WeftError where the place cannot be reached
    by_user: bool = True  # it knows whose each thing is; else only of which tenant


@dataclass(frozen=True, slots=True)
class Erased:
    """What became of one place."""

    holder: str
    found: Mapping[str, int] = field(default_factory=dict)
    is_gone: bool = False
    left: str = ""  # why it is not gone


async def erase_everywhere(
    holders: Sequence[Holder], tenant: str, user: str | None = None, *, dry_run: bool = False
) -> list[Erased]:
    """One place that cannot be reached does not keep the others: run it again until nothing is left."""
    return [await _erased(holder, tenant, user, dry_run) for holder in holders]


async def _erased(holder: Holder, tenant: str, user: str | None, dry_run: bool) -> Erased:
    shared = user is not None and not holder.by_user
    try:
        found = await holder.erase(tenant, None if shared else user, dry_run or shared)
    except WeftError as error:
        log_failure(logger, "data could not be erased", error, holder=holder.name)
        return Erased(holder.name, left=error.message)
    if shared:
        return Erased(holder.name, found, left="of the whole tenant: nothing here says of which user it is")
    return Erased(holder.name, found, is_gone=not dry_run, left="only looked at" if dry_run else "")
