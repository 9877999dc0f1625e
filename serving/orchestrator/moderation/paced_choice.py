"""One answer on its way: judged every few tokens while it is decoded, and shown a little behind what is judged.

    shown             judged              taken from the generator
      |--- hold-back ---|--- in judgement ---|

Passages end at multiples of `judge_every` tokens, whatever pieces the engine sends them in, and a judgement is of the
text alone. So a cut falls at the same token for every reader, and again when another process goes on with the stream:
events leave here only once they may be seen, and what is logged, or resumed, is what has left.

Where a program may read the answer it is judged a second time, with the escapes of its literals undone; and the
hold-back counts an escape for one token, however many spell it: as long a phrase is held back in either spelling.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from serving.engine.continuation import without_first_facts
from serving.engine.request import FinishReason, TokenEvent
from serving.generation.choice import Choice, ChoiceStep
from serving.generation.request import TextDelta, Usage
from serving.orchestrator.moderation.judges.judge import Passage
from serving.orchestrator.moderation.policy import Policy, Verdict
from serving.orchestrator.moderation.unescaped import Unescaped, Unescaper

CONTEXT_CHARS = 1000  # of the answer, that are judged again with what is new

Steps = AsyncGenerator[ChoiceStep, None]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the answer answers."""

    tokens: int
    newest: str  # message


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is judged at once: a passage as it was written, and as a program reads it where that is another text."""

    written: Passage
    read: Passage | None = None
    places: tuple[int, ...] = ()  # of the characters of `read`, in `written`; 0 for what stands before it


Judged = Callable[[Stretch], Awaitable[Verdict]]


@dataclass(frozen=True, slots=True)
class _Piece:
    """An event of one token at most, and what it makes visible."""

    tokens: int  # of the choice, up to its end
    held: int  # likewise, as the hold-back counts them
    read: Unescaped
    chars: int  # of the visible text, up to its end
    event: TokenEvent
    delta: TextDelta | None

    @property
    def text(self) -> str:
        return "" if self.delta is None else self.delta.text


class PacedChoice:
    def __init__(
        self,
        index: int,
        choice: Choice,
        policy: Policy,
        judged: Judged,
        prompt: Prompt,
        *,
        waits: bool,
        has_literals: bool,
    ) -> None:
        """`choice` is fresh. `waits`: the judges take their time, so that tokens are taken meanwhile. `has_literals`:
        a program may read the answer."""
        self._index = index
        self._choice = choice
        self._judge = judged
        self._prompt = prompt
        self._waits = waits
        self._every = policy.judge_every
        self._lead = policy.lead
        # A stretch is in judgement and the next one is on its way: the rest of the hold-back is kept behind them.
        self._behind = 0 if policy.lead else policy.hold_back - 2 * policy.judge_every
        self._unshown: deque[_Piece] = deque()
        self._unjudged: deque[_Piece] = deque()
        self._context = ""  # the end of the judged text
        self._unescaper = Unescaper() if has_literals else None
        self._read_context = Unescaped()
        self._judged_chars = 0
        self._judged = 0  # tokens
        self._judged_held = 0  # as the hold-back counts them
        self._taken = 0
        self._held = 0
        self._shown = 0
        self._chars = 0
        self._ended = False
        self._judging: asyncio.Task[Verdict] | None = None
        self._flags: dict[str, float] = {}
        self._cached_tokens = 0
        self._guessed_tokens = self._accepted_tokens = 0  # among what was shown
        self._weights: str | None = None  # that drew it
        self._judging_end = self._judging_held = 0  # tokens
        self._passage_start = 0  # characters

    def recall(self, events: Iterable[TokenEvent]) -> None:
        """What was shown by an earlier run."""
        for event in events:
            self._take(event)
        self._show(lambda _: True)
        known = max(0, self._taken - self._lead) // self._every * self._every
        while self._unjudged and self._unjudged[0].tokens <= known:
            piece = self._unjudged.popleft()
            self._keep(piece)
            self._judged_held = piece.held
        self._judged = known

    async def steps(self, source: Steps) -> Steps:
        """Those of `source` that may be seen; after a cut, one with the finish_reason "content_filter". Closing it
        closes `source`, and so does a cut."""
        try:
            async with aclosing(source):
                async for step in source:
                    self._take(step.event)
                    verdict = await self._verdict()
                    if verdict is not None:
                        for piece in self._clean(verdict):
                            yield piece
                        yield self._cut()
                        return
                    if (shown := self._show(self._may_be_seen)) is not None:
                        yield shown
        finally:
            if self._judging is not None:
                self._judging.cancel()
                await asyncio.gather(self._judging, return_exceptions=True)

    def _take(self, event: TokenEvent) -> None:
        self._cached_tokens = event.cached_tokens or self._cached_tokens
        for part in _parts(event):
            delta = self._choice.feed(part)
            text = "" if delta is None else delta.text
            read, goes_on = self._read(text)
            self._taken += len(part.token_ids)
            self._held += 0 if goes_on else len(part.token_ids)
            self._chars += len(text)
            piece = _Piece(self._taken, self._held, read, self._chars, part, delta)
            self._unshown.append(piece)
            self._unjudged.append(piece)
            if delta is not None and delta.finish_reason is not None:
                self._ended = True
                return  # a stop string: what the event has beyond it is not of the answer

    def _read(self, text: str) -> tuple[Unescaped, bool]:
        """The text as a program reads it, and whether it is all of an escape that began before it."""
        if self._unescaper is None:
            return Unescaped(), False
        inside = self._unescaper.is_inside
        read = self._unescaper.feed(text)
        return read, bool(text) and inside and len(read.text) + self._unescaper.is_inside <= 1

    async def _verdict(self) -> Verdict | None:
        """That which cuts; None where nothing does so far."""
        while True:
            if self._judging is None:
                end = self._next_end()
                if end is None:
                    return None
                stretch = self._stretch(end)
                if self._waits:
                    self._judging = asyncio.create_task(self._ask(stretch))
                    continue
                verdict = await self._judge(stretch)
            else:
                behind = self._taken - self._judged
                if not (self._judging.done() or self._ended or behind >= max(2 * self._every, self._lead)):
                    return None
                verdict = await self._judging
                self._judging = None
            self._flags.update(verdict.flags)
            if verdict.stops:
                return verdict
            self._judged, self._judged_held = self._judging_end, self._judging_held

    async def _ask(self, stretch: Stretch) -> Verdict:
        return await self._judge(stretch)

    def _next_end(self) -> int | None:
        """Where the next passage ends; None where it is not complete."""
        end = self._judged + self._every
        if end <= self._taken:
            return end
        return self._taken if self._ended and self._unjudged else None

    def _stretch(self, end: int) -> Stretch:
        """Takes what is unjudged up to `end`."""
        fresh: list[_Piece] = []
        written, read = self._context, self._read_context
        while self._unjudged and self._unjudged[0].tokens <= end:
            fresh.append(self._unjudged.popleft())
            self._keep(fresh[-1])
        new, new_read = "".join(piece.text for piece in fresh), sum((piece.read for piece in fresh), Unescaped())
        self._judging_end, self._judging_held = end, fresh[-1].held if fresh else self._judged_held
        self._passage_start = start = self._judged_chars - len(written) - len(new)
        passage = Passage(text=written + new, direction="output", fresh=len(new), asked=self._prompt.newest)
        whole = read + new_read
        if self._unescaper is None or whole.text == passage.text:
            return Stretch(passage)
        places = tuple(max(0, place - start) for place in whole.places)
        return Stretch(passage, replace(passage, text=whole.text, fresh=len(new_read.text)), places)

    def _keep(self, piece: _Piece) -> None:
        self._context = (self._context + piece.text)[-CONTEXT_CHARS:]
        self._read_context = (self._read_context + piece.read).last(CONTEXT_CHARS)
        self._judged_chars += len(piece.text)

    def _may_be_seen(self, piece: _Piece) -> bool:
        if self._ended and not self._unjudged and self._judging is None:
            return True
        if self._lead:
            return piece.tokens <= self._judged + self._lead
        return piece.held <= self._judged_held - self._behind

    def _show(self, may_be_seen: Callable[[_Piece], bool]) -> ChoiceStep | None:
        """What of the unshown may be seen, as one step."""
        ready: list[_Piece] = []
        while self._unshown and may_be_seen(self._unshown[0]):
            ready.append(self._unshown.popleft())
        return self._step(ready) if ready else None

    def _clean(self, verdict: Verdict) -> Iterator[ChoiceStep]:
        """What stands before the place that the verdict is about."""
        if not verdict.clean_until:
            return
        clean = self._passage_start + verdict.clean_until
        ready: list[_Piece] = []
        while self._unshown and self._unshown[0].chars <= clean and self._unshown[0].event.finish_reason is None:
            ready.append(self._unshown.popleft())
        if ready:
            yield self._step(ready)

    def _cut(self) -> ChoiceStep:
        """The last event. Where nothing was shown it is the first too, and says what that says once."""
        flags, reason = tuple(sorted(self._flags.items())), FinishReason.CONTENT_FILTER
        event, prompt_logprobs = TokenEvent(request_id=""), None
        if not self._shown and self._unshown:
            first = self._unshown[0]
            event = replace(first.event, token_ids=(), logprobs=(), stop_token_id=None)
            prompt_logprobs = None if first.delta is None else first.delta.prompt_logprobs
        event = replace(event, finish_reason=reason, flags=flags)
        usage = Usage(
            prompt_tokens=self._prompt.tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._shown,
            guessed_tokens=self._guessed_tokens + event.guessed_tokens,
            accepted_tokens=self._accepted_tokens + event.accepted_tokens,
        )
        delta = TextDelta(
            index=self._index,
            usage=usage,
            answer=self._choice.answer,
            prompt_logprobs=prompt_logprobs,
            weights=event.weights or self._weights,
            finish_reason=reason,
            flags=flags,
        )
        return ChoiceStep(self._index, event, delta)

    def _step(self, pieces: list[_Piece]) -> ChoiceStep:
        self._shown = pieces[-1].tokens
        event, delta = _joined_event(pieces), _joined_delta(pieces)
        self._guessed_tokens += event.guessed_tokens
        self._accepted_tokens += event.accepted_tokens
        self._weights = event.weights or self._weights
        if delta is not None and delta.finish_reason is not None and self._flags:
            flags = tuple(sorted(self._flags.items()))
            event, delta = replace(event, flags=flags), replace(delta, flags=flags)
        return ChoiceStep(self._index, event, delta)


def _parts(event: TokenEvent) -> Iterator[TokenEvent]:
    """A token each; what is said once stands in the first, how it ended in the last. Guesses that were right come first
    of all: each is counted where it stands."""
    last = len(event.token_ids) - 1
    if last < 1:
        yield event
        return
    for at in range(last + 1):
        part = replace(
            event,
            token_ids=event.token_ids[at : at + 1],
            logprobs=event.logprobs[at : at + 1],
            accepted_tokens=int(at < event.accepted_tokens),
        )
        if at:
            part = replace(without_first_facts(part), guessed_tokens=0)
        if at < last:
            part = replace(part, finish_reason=None, stop_token_id=None)
        yield replace(part, weights=event.weights) if at == last else part


def _joined_event(pieces: list[_Piece]) -> TokenEvent:
    if len(pieces) == 1:
        return pieces[0].event
    events = [piece.event for piece in pieces]
    first, last = events[0], events[-1]
    return replace(
        first,
        token_ids=tuple(token for event in events for token in event.token_ids),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        guessed_tokens=sum(event.guessed_tokens for event in events),
        accepted_tokens=sum(event.accepted_tokens for event in events),
        weights=last.weights or first.weights,
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
    )


def _joined_delta(pieces: list[_Piece]) -> TextDelta | None:
    deltas = [piece.delta for piece in pieces if piece.delta is not None]
    if len(deltas) < 2:
        return deltas[0] if deltas else None
    last = deltas[-1]
    return replace(
        last,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        prompt_logprobs=next((d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None), None),
    )
