"""A text under a model: the score of each token by those before it in its window, through the engine."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.engine.client import Engine
from serving.engine.request import MAX_LOGPROBS, GenerateRequest, SamplingParams, TokenLogprobs
from serving.errors import ConfigError, EngineUnavailableError
from serving.generation.tokenizer import Tokenizer

AT_ONCE = 8  # windows that the engine has


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Each window's tokens but the first, with their scores."""

    windows: Sequence[Sequence[TokenLogprobs]]

    @property
    def scores(self) -> list[TokenLogprobs]:
        return [score for window in self.windows for score in window]

    @property
    def token_ids(self) -> list[int]:
        return [score.token_id for score in self.scores]

    @property
    def count(self) -> int:
        return sum(map(len, self.windows))

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability of a token."""
        return math.exp(-sum(score.logprob for score in self.scores) / self.count)


def read_text(files: Sequence[Path]) -> str:
    """Raises ConfigError for a file that is not there or no UTF-8."""
    parts = []
    for file in files:
        try:
            parts.append(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--text {file}: it cannot be read as UTF-8 text: {error}", param="text") from error
    return "\n".join(parts)


def windows(tokenizer: Tokenizer, text: str, size: int, most: int) -> list[tuple[int, ...]]:
    """The first `most` tokens, in windows of `size`, which do not overlap. Raises ConfigError for less than two."""
    ids = tokenizer.encode(text, add_special_tokens=False)[:most]
    found = [tuple(ids[begin : begin + size]) for begin in range(0, len(ids), size)]
    found = [window for window in found if len(window) > 1]
    if not found:
        raise ConfigError("--text: there must be two tokens at least to score one by the other", param="text")
    return found


async def score_all(
    engine: Engine, parts: Sequence[tuple[int, ...]], advance: Callable[[int], None]
) -> list[tuple[TokenLogprobs, ...]]:
    """Raises what the engine raises."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> tuple[TokenLogprobs, ...]:
        async with room:
            scores = await score(engine, f"eval-{index}", parts[index])
            advance(1)
            return scores

    return list(await asyncio.gather(*(one(index) for index in range(len(parts)))))


async def score(engine: Engine, request_id: str, token_ids: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
    """Of every token but the first."""
    sampling = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=MAX_LOGPROBS)
    request = GenerateRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling)
    scores: tuple[TokenLogprobs, ...] = ()
    async for event in engine.generate(request):
        if event.error is not None:
            raise EngineUnavailableError(f"the engine failed on {request_id}: {event.error}")
        scores += event.prompt_logprobs
    return scores
