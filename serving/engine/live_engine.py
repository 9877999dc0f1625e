"""An engine that runs, as the handlers of operations see it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from serving.engine.adapters import Adapters
from serving.engine.engine import EngineLoop
from serving.engine.live_model import LiveModel
from serving.engine.operation import OperationReport
from serving.errors import UnsupportedError

if TYPE_CHECKING:
    from serving.engine.recording import TraceFolder

T = TypeVar("T")


class LiveEngine(Protocol):
    """Its loop runs on another thread."""

    @property
    def model(self) -> LiveModel | None:
        """None where its memory is not this process's alone."""
        ...

    @property
    def adapters(self) -> Adapters | None:
        """None where the deployment has no slots for any."""
        ...

    @property
    def trace_folder(self) -> "TraceFolder | None":
        """None where no steps may be recorded."""
        ...

    async def on_loop(self, work: Callable[[EngineLoop], T]) -> T:
        """What `work` returns or raises, on the loop's thread between two steps; one step may be on the device."""
        ...


def model_of(engine: LiveEngine) -> LiveModel:
    """Raises UnsupportedError."""
    if engine.model is None:
        raise UnsupportedError(
            "this engine cannot sleep or take other weights: with several hosts each holds a part of the model, and "
            "only steps are sent to them; restart them instead",
            param="operation",
        )
    return engine.model


def report_of(loop: EngineLoop, **facts: Any) -> OperationReport:
    """The state that an operation leaves, and what else it has to say."""
    stats = loop.scheduler.stats
    return OperationReport(
        state=loop.state, open_streams=stats.running + stats.waiting, weights=loop.weights or None, **facts
    )
