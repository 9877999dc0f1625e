"""A durable generation as its readers see it: the log's events made into deltas again, from the first on.

Each reader has a detokenizer and stop strings of its own, fed with the same tokens one by one, so each gets the same
text in the same pieces, however late it comes and whatever of the log had to be made again.
"""

from contextlib import aclosing

from serving.api.generation import Deltas
from serving.api.service import Service
from serving.gateway.fallback import Fallback
from serving.generation.generator import Generator
from serving.generation.request import PreparedPrompt, TextDelta
from serving.sessions.logged_generation import Admitted, LoggedEvent


class FollowedGeneration:
    """Stands where a reply has its Generation. Closing `deltas` ends nothing but the reading."""

    def __init__(self, service: Service, admitted: Admitted) -> None:
        """Raises NotFoundError where its model is served no more."""
        self.prepared: list[PreparedPrompt] = list(admitted.prompts)
        self.cached_tokens = 0
        self.guessed_tokens = 0
        self.accepted_tokens = 0
        self._service = service.of(admitted.model or None)
        self._model = admitted.named or self._service.card.name
        self._fallback = None if admitted.fallback is None else Fallback(**admitted.fallback)
        self._stream_id = admitted.stream_id
        self._generated: dict[tuple[int, int], int] = {}

    @property
    def model(self) -> str:
        return self._model

    @property
    def fallback(self) -> Fallback | None:
        return self._fallback

    @property
    def generator(self) -> Generator:
        return self._service.generator

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.prompt_tokens for prompt in self.prepared)

    @property
    def completion_tokens(self) -> int:
        return sum(self._generated.values())

    def _count(self, logged: LoggedEvent, delta: TextDelta) -> None:
        self._generated[logged.prompt, logged.choice] = delta.usage.completion_tokens
        if delta.finish_reason is not None:
            self.cached_tokens += 0 if delta.index else delta.usage.cached_tokens
            self.guessed_tokens += delta.usage.guessed_tokens
            self.accepted_tokens += delta.usage.accepted_tokens

    async def deltas(self) -> Deltas:
        """Raises what DurableGenerations.follow raises."""
        choices = [self._service.generator.choices(prompt) for prompt in self.prepared]
        async with aclosing(self._service.durable.follow(self._stream_id)) as events:
            async for logged in events:
                for event in logged.by_token():
                    delta = choices[logged.prompt][logged.choice].feed(event)
                    if delta is None:
                        continue
                    self._count(logged, delta)
                    yield logged.prompt, delta
                    if delta.finish_reason is not None:
                        break  # a stop string: what follows it in the event is not of the answer
