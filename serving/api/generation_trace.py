"""The spans of one generation, below its request's: what the engine did for each choice is told by its events, and made
into spans when the choice has ended. Attributes have the names of OpenTelemetry's conventions for generative AI."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from serving.generation.choice import ChoiceStep
from serving.generation.request import PreparedPrompt, TextRequest
from serving.observability.request_trace import Attributes, RequestTrace

MOST_CHOICES = 16  # that get spans of their own

INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"


def generation_stage(trace: RequestTrace, requests: Sequence[TextRequest], model: str, *, stream: bool) -> RequestTrace:
    """The span of a whole generation, that begins now."""
    if not trace.is_recorded:
        return trace
    first = requests[0]
    operation = "text_completion" if first.messages is None else "chat"
    attributes: dict[str, str | bool | int | float] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "weft",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": stream,
        "gen_ai.request.choice.count": first.options.n,
        "weft.request_id": first.request_id,
    }
    return trace.stage(f"{operation} {model}", attributes)


@dataclass(slots=True)
class _Course:
    """One choice's way through the engine."""

    queue_seconds: float | None = None  # None: it was never planned
    first_token: float | None = None
    cached_tokens: int = 0
    tokens: int = 0
    events: int = 0
    ended: bool = False


class EngineSpans:
    """`trace` is the generation's, and begins to be told of the engine now."""

    def __init__(self, trace: RequestTrace, prepared: Sequence[PreparedPrompt]) -> None:
        self._trace = trace
        self._prepared = prepared
        self._submitted = time.monotonic()
        self._courses: dict[tuple[int, int], _Course] = {}
        self._first_token: float | None = None
        self._finish_reasons: list[str] = []
        self._is_one = len(prepared) == 1 and prepared[0].n <= 1

    def see(self, prompt: int, step: ChoiceStep) -> None:
        now, event, key = time.monotonic(), step.event, (prompt, step.index)
        course = self._courses.get(key)
        if course is None:
            if len(self._courses) >= MOST_CHOICES:
                return
            course = self._courses[key] = _Course()
        course.events += 1
        course.tokens += len(event.token_ids)
        if event.queue_seconds is not None:
            course.queue_seconds = event.queue_seconds
            course.cached_tokens = event.cached_tokens or 0
        if course.first_token is None and event.token_ids:
            course.first_token = now
            self._first_token = self._first_token or now
        if step.delta is not None and step.delta.finish_reason is not None:
            self._record(key, course, now, step.delta.finish_reason.value)

    def end(self, output_tokens: int, arrival: float) -> None:
        """`arrival` is the request's."""
        now = time.monotonic()
        for key, course in self._courses.items():
            if not course.ended:
                self._record(key, course, now, None)
        if not self._courses:
            self._trace.record("engine queue", self._submitted, now)
        sampling = self._prepared[0].sampling
        attributes: dict[str, int | float | list[str]] = {
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            INPUT_TOKENS: sum(prompt.prompt_tokens for prompt in self._prepared),
            OUTPUT_TOKENS: output_tokens,
            CACHED_TOKENS: sum(course.cached_tokens for (_, choice), course in self._courses.items() if choice == 0),
            FINISH_REASONS: self._finish_reasons,
        }
        if self._first_token is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = self._first_token - arrival
        self._trace.describe(attributes)

    def _record(self, key: tuple[int, int], course: _Course, end: float, finish_reason: str | None) -> None:
        course.ended = True
        if finish_reason is not None:
            self._finish_reasons.append(finish_reason)
        prompt, choice = key
        which: Attributes = {} if self._is_one else {"weft.prompt": prompt, "weft.choice": choice}
        if course.queue_seconds is None:
            self._trace.record("engine queue", self._submitted, end, which)
            return
        planned = min(self._submitted + course.queue_seconds, end)
        computed = max(planned, course.first_token or end)
        self._trace.record("engine queue", self._submitted, planned, which)
        prompt_tokens = self._prepared[prompt].prompt_tokens
        read = {**which, INPUT_TOKENS: prompt_tokens, CACHED_TOKENS: course.cached_tokens}
        self._trace.record("prefill", planned, computed, read)
        if course.first_token is None:
            return
        written: dict[str, int | list[str]] = {OUTPUT_TOKENS: course.tokens, "weft.engine.events": course.events}
        if finish_reason is not None:
            written[FINISH_REASONS] = [finish_reason]
        self._trace.record("decode", computed, end, {**which, **written})
