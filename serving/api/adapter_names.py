"""The names by which clients choose an adapter: its own, or MODEL:ADAPTER. The engine knows which there are."""

import time
from collections.abc import Callable

from serving.engine.adapter_messages import ListAdapters
from serving.engine.client import Engine
from serving.engine.operation import OperationReport
from serving.errors import NotFoundError
from serving.settings.adapters import ADAPTER_NAME

FRESH_SECONDS = 1.0  # for which an answer of the engine's is believed about names that it lacks


class AdapterNames:
    def __init__(self, engine: Engine, model: str, now: Callable[[], float] = time.monotonic) -> None:
        """`model` is the name of the base."""
        self._engine = engine
        self._model = model
        self._now = now
        self._known: tuple[str, ...] = ()
        self._asked_at = float("-inf")

    def spelled(self, name: str) -> str | None:
        """The adapter that `name` could be; None for what can be none."""
        own = name.removeprefix(f"{self._model}:")
        return own if own != self._model and ADAPTER_NAME.fullmatch(own) else None

    async def resolve(self, name: str) -> str:
        """The adapter that a client means. Raises NotFoundError, and what the engine raises."""
        own = self.spelled(name)
        if own is not None and own not in self._known and self._now() - self._asked_at >= FRESH_SECONDS:
            await self.all()
        if own is None or own not in self._known:
            raise NotFoundError(
                f"there is no model {name[:100]!r} here; this server has {self._model!r} and its adapters",
                param="model",
                code="model_not_found",
            )
        return own

    async def all(self) -> tuple[str, ...]:
        """Those that there are now."""
        self.hear(await self._engine.operate(ListAdapters()))
        return self._known

    def hear(self, report: OperationReport) -> None:
        """What an operation has left behind."""
        self._known = tuple(state.name for state in report.adapters or ())
        self._asked_at = self._now()
