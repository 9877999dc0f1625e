"""One choice of a generation: token events in, text deltas out."""

from collections import deque
from dataclasses import dataclass

from serving.engine.request import FinishReason, TokenEvent, TokenLogprobs
from serving.errors import EngineError, RequestError
from serving.generation.answers.answer_form import AnswerForm
from serving.generation.detokenizer import Detokenizer
from serving.generation.request import PreparedPrompt, TextDelta, TextLogprobs, TokenText, Usage
from serving.generation.stop_strings import StopMatcher, StopStrings
from serving.generation.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Held:
    """A token whose text has not all been shown. Positions are characters of the choice's whole text."""

    token_id: int
    logprobs: TokenLogprobs | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChoiceStep:
    """One event of one choice, and what it makes visible."""

    index: int
    event: TokenEvent
    delta: TextDelta | None


class Choice:
    """Turns the events of one engine stream into deltas. After a delta with a finish_reason it must not be fed."""

    def __init__(self, index: int, prepared: PreparedPrompt, stops: StopStrings, tokenizer: Tokenizer) -> None:
        self._index = index
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=prepared.skip_special_tokens,
            prompt=prepared.prompt_token_ids,
            kept=prepared.kept_special_tokens,
        )
        self._matcher = StopMatcher(stops, include_stop=prepared.include_stop_str_in_output)
        self._ends = frozenset(prepared.sampling.eos_token_ids + prepared.sampling.stop_token_ids)
        self._held: deque[_Held] = deque()
        self._decoded = 0  # characters that came out of the detokenizer
        self._shown = 0  # of them, released
        self._completion_tokens = 0
        self._cached_tokens = 0
        self._guessed_tokens = 0
        self._accepted_tokens = 0
        self._weights: str | None = None
        self._started = False

    @property
    def answer(self) -> AnswerForm:
        """How its text is to be read."""
        return self._prepared.answer

    def feed(self, event: TokenEvent) -> TextDelta | None:
        """The delta that this event makes visible; None where it is nothing. Raises EngineError where the engine
        failed."""
        if event.finish_reason is FinishReason.ERROR:
            text = event.error or "the engine failed on this request"
            if event.error_param is not None:
                raise RequestError(text, param=event.error_param, code="grammar_too_complex")
            raise EngineError(text)
        self._cached_tokens = event.cached_tokens or self._cached_tokens
        self._guessed_tokens += event.guessed_tokens
        self._weights = event.weights or self._weights
        text, stopped = self._take_tokens(event)
        finish, stop_reason = event.finish_reason, event.stop_token_id
        if not stopped and finish is not None and finish is not FinishReason.CONTENT_FILTER:
            text += self._release(self._detokenizer.finish())
            stopped = self._matcher.stopped is not None
            if not stopped:
                rest = self._matcher.finish()
                self._shown += len(rest)
                text += rest
        if self._matcher.stopped is not None:
            finish, stop_reason = FinishReason.STOP, self._matcher.stopped.stop
        tokens = self._visible_tokens()
        prompt_logprobs = self._prompt_logprobs(event)
        if not (text or tokens or finish or prompt_logprobs is not None):
            return None
        return TextDelta(
            index=self._index,
            usage=Usage(
                prompt_tokens=self._prepared.prompt_tokens,
                cached_tokens=self._cached_tokens,
                completion_tokens=self._completion_tokens,
                guessed_tokens=self._guessed_tokens,
                accepted_tokens=self._accepted_tokens,
            ),
            answer=self._prepared.answer,
            text=text,
            token_ids=tuple(held.token_id for held in tokens),
            logprobs=tuple(self.describe(held.logprobs, held.start) for held in tokens if held.logprobs is not None),
            prompt_logprobs=prompt_logprobs,
            weights=self._weights,
            finish_reason=finish,
            stop_reason=stop_reason if finish is FinishReason.STOP else None,
            flags=event.flags,
        )

    def describe(self, logprobs: TokenLogprobs, start: int = 0) -> TextLogprobs:
        top = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        return TextLogprobs(
            token=self._token(logprobs.token_id),
            logprob=logprobs.logprob,
            rank=logprobs.rank,
            top=tuple((self._token(token_id), value) for token_id, value in top),
            start=start,
        )

    def _take_tokens(self, event: TokenEvent) -> tuple[str, bool]:
        """The text that the event's tokens release, and whether a stop string ended it among them."""
        parts: list[str] = []
        last = len(event.token_ids) - 1
        for position, token_id in enumerate(event.token_ids):
            self._completion_tokens += 1
            ends = position == last and event.finish_reason is FinishReason.STOP and token_id in self._ends
            start = self._decoded
            # The token that ends the stream is a mark, not text, even where it is not a special token.
            silent = ends and not self._prepared.include_stop_str_in_output
            text = "" if silent else self._detokenizer.add(token_id)
            self._decoded += len(text)
            parts.append(self._release(text))
            unfinished = self._detokenizer.has_unfinished_character and not silent
            logprobs = event.logprobs[position] if event.logprobs else None
            self._held.append(_Held(token_id, logprobs, start, self._decoded + unfinished))
            if self._matcher.stopped is not None:
                # The token that a text ends with counts as drawn, as where the engine itself ends one.
                self._accepted_tokens += min(event.accepted_tokens, position)
                return "".join(parts), True
        self._accepted_tokens += event.accepted_tokens
        return "".join(parts), False

    def _release(self, text: str) -> str:
        may_stop = self._completion_tokens > self._prepared.sampling.min_tokens
        shown = self._matcher.add(text, may_stop=may_stop)
        self._shown += len(shown)
        return shown

    def _visible_tokens(self) -> list[_Held]:
        """Those whose text has been shown to the end; where the stop string is shown too, the token that ends it may
        reach beyond it."""
        visible: list[_Held] = []
        cut = self._matcher.stopped is not None and self._prepared.include_stop_str_in_output
        while self._held and (self._held[0].end <= self._shown or (cut and self._held[0].start < self._shown)):
            visible.append(self._held.popleft())
        return visible

    def _prompt_logprobs(self, event: TokenEvent) -> tuple[TextLogprobs | None, ...] | None:
        first, self._started = not self._started, True
        if self._index or self._prepared.sampling.prompt_logprobs is None or not first:
            return None
        if event.finish_reason is FinishReason.DEADLINE:  # it passed before the prompt was read to its end
            return None
        if len(event.prompt_logprobs) != self._prepared.prompt_tokens - 1:
            raise EngineError("the engine did not score the whole prompt")
        return (None, *(self.describe(entry) for entry in event.prompt_logprobs))

    def _token(self, token_id: int) -> TokenText:
        raw = self._tokenizer.token_bytes(token_id)
        return TokenText(token_id=token_id, token=raw.decode(errors="replace"), token_bytes=raw)
