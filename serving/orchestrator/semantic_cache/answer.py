"""An answer as it was shown once, and can be shown again."""

from dataclasses import dataclass

from serving.engine.request import FinishReason, TokenEvent
from serving.generation.choice import ChoiceStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    token_ids: tuple[int, ...]
    stop_token_id: int | None
    text: str
    weights: str  # that drew it

    def event(self, request_id: str, prompt_tokens: int) -> TokenEvent:
        """All of it as one event of the engine's."""
        return TokenEvent(
            request_id=request_id,
            token_ids=self.token_ids,
            finish_reason=FinishReason.STOP,
            stop_token_id=self.stop_token_id,
            cached_tokens=prompt_tokens,
            weights=self.weights,
        )


class AnswerRecord:
    """Of the steps that a client sees."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._weights: set[str] = set()
        self._last: ChoiceStep | None = None

    def see(self, step: ChoiceStep) -> None:
        self._token_ids += step.event.token_ids
        self._texts.append("" if step.delta is None else step.delta.text)
        if step.event.weights is not None:
            self._weights.add(step.event.weights)
        self._last = step

    def answer(self) -> Answer | None:
        """None for one that did not end of itself, of which moderation noted anything, or that more than one version of
        the weights drew."""
        delta = None if self._last is None else self._last.delta
        if self._last is None or delta is None or delta.finish_reason is not FinishReason.STOP:
            return None
        if delta.flags or len(self._weights) != 1:
            return None
        return Answer(
            token_ids=tuple(self._token_ids),
            stop_token_id=self._last.event.stop_token_id,
            text="".join(self._texts),
            weights=next(iter(self._weights)),
        )
