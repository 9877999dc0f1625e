"""What a computed token costs: the device's time, shared among the tokens of the steps."""

from serving.engine.client import EngineStats

_MEMORY = 0.3  # weight of the newest interval


class DeviceCost:
    """Fed with the engine's snapshots. Prefill and decode tokens count alike, so that a long prompt's share is high and
    a long answer's low: an estimate."""

    def __init__(self) -> None:
        self._last: EngineStats | None = None
        self._per_token = 0.0

    def see(self, stats: EngineStats) -> None:
        last, self._last = self._last, stats
        if last is None or last.started_at != stats.started_at:
            return
        tokens = stats.prompt_tokens + stats.generation_tokens - last.prompt_tokens - last.generation_tokens
        seconds = stats.device_wait_seconds - last.device_wait_seconds
        if tokens <= 0:
            return
        newest = seconds / tokens
        self._per_token += (newest - self._per_token) * (_MEMORY if self._per_token else 1.0)

    def of(self, tokens: int) -> float:
        """Seconds."""
        return self._per_token * tokens
