"""What a turn puts before the model, fitted into its window.

    instructions, tools | summary, history        | notes, documents, input
    `- every turn's -'    `- grows at its end -'    `- this turn's alone -'

What changes from turn to turn stands last, so that the pages of all before it are shared with the turn before. Where
the history no longer fits it is trimmed from its beginning, in blocks: the cut stays where it is for many turns, and
with it the shared prefix, instead of moving at each of them. Instructions, tools and the newest turn are never left
out.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from serving.errors import ContextLengthError
from serving.orchestrator.counter import CountedOnce, Counter
from serving.orchestrator.marked_data import marked
from serving.orchestrator.turns import Conversation, Message, Turn

Truncation = Literal["auto", "disabled"]
Kind = Literal["turn", "document", "note", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Text that is data to the model: a document's part, or a note of the memory."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParts:
    conversation: Conversation
    tools: list[dict[str, Any]] | None = None
    summary: str | None = None  # of the turns that earlier prompts had to leave out
    notes: Sequence[Passage] = ()  # best first
    documents: Sequence[Passage] = ()  # best first


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShares:
    """Of the window. Documents and notes that do not fit theirs are left out, the least relevant first."""

    documents: float = 0.3
    notes: float = 0.1
    newest: float = 0.3  # kept free for the newest turn and its data, so that their length does not move the cut
    block: float = 0.25  # the least that is trimmed at once


@dataclass(frozen=True, slots=True)
class LeftOut:
    kind: Kind
    id: str  # of a turn: its number in the conversation, from 0
    tokens: int  # about


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    messages: list[Message]
    prompt_tokens: int  # exact, of the rendered prompt
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextBuilder:
    """`window`: the tokens that a prompt may have, the output's taken off."""

    counter: Counter
    window: int
    truncation: Truncation = "auto"
    shares: ContextShares = field(default_factory=ContextShares)

    async def build(self, parts: ContextParts) -> Context:
        """Raises ContextLengthError where what must not be left out is too long, or with truncation "disabled" anything
        would be left out."""
        once = replace(self, counter=CountedOnce(self.counter))
        return await once._whole(parts) or await once._fitted(parts)

    async def _whole(self, parts: ContextParts) -> Context | None:
        """With nothing left out; None where that does not fit. Most prompts are so, and are counted but once."""
        lost: list[LeftOut] = []
        documents = self._share(parts.documents, "document", self.shares.documents, lost)
        notes = self._share(parts.notes, "note", self.shares.notes, lost)
        if lost:
            return None
        conversation = parts.conversation
        newest = _with_data(conversation.newest, documents, notes)
        history = [message for turn in conversation.history for message in turn.messages]
        messages = [*_instructions(conversation, parts.summary), *history, *newest.messages]
        tokens = await self.counter.prompt(messages, parts.tools)
        return Context(messages=messages, prompt_tokens=tokens) if tokens <= self.window else None

    async def _fitted(self, parts: ContextParts) -> Context:
        history = parts.conversation.history
        fixed, lost = await self._without_history(parts)

        def messages(cut: int) -> list[Message]:
            kept = [message for turn in history[cut:] for message in turn.messages]
            return [*fixed.instructions, *kept, *fixed.newest.messages]

        # A long history is encoded for seconds, in which others would wait; its sizes are asked for again below.
        await asyncio.to_thread(lambda: [self._size(turn) for turn in (*history, fixed.newest)])
        cut, tokens = await self._cut(history, fixed.newest, parts.tools, messages)
        trimmed = [LeftOut("turn", str(number), self._size(turn)) for number, turn in enumerate(history[:cut])]
        left_out = (*trimmed, *lost)
        if left_out and self.truncation == "disabled":
            raise ContextLengthError(
                f"the context does not fit into {self.window} tokens without leaving out {_counted(left_out)}; shorten "
                'it, or set truncation to "auto"',
                param="truncation",
            )
        return Context(messages=messages(cut), prompt_tokens=tokens, left_out=left_out)

    async def _without_history(self, parts: ContextParts) -> tuple["_Fixed", list[LeftOut]]:
        """The instructions, and the newest turn with as much of the documents and notes as fits beside them."""
        conversation = parts.conversation
        instructions = _instructions(conversation, None)
        needed = await self.counter.prompt([*instructions, *conversation.newest.messages], parts.tools)
        if needed > self.window:
            raise ContextLengthError(
                f"instructions, tools and the newest input take {needed} tokens and are never left out, but a prompt "
                f"may have {self.window} here",
                param="messages",
            )
        lost: list[LeftOut] = []
        documents = self._share(parts.documents, "document", self.shares.documents, lost)
        notes = self._share(parts.notes, "note", self.shares.notes, lost)
        summary = parts.summary
        while True:
            fixed = _Fixed(_instructions(conversation, summary), _with_data(conversation.newest, documents, notes))
            if await self.counter.prompt([*fixed.instructions, *fixed.newest.messages], parts.tools) <= self.window:
                return fixed, lost
            # What a turn can best do without goes first; without any of it, it fits.
            if documents:
                lost.append(self._left_out(documents.pop(), "document"))
            elif notes:
                lost.append(self._left_out(notes.pop(), "note"))
            else:
                lost.append(LeftOut("summary", "earlier", self.counter.text(summary or "")))
                summary = None

    def _share(
        self, passages: Sequence[Passage], kind: Literal["document", "note"], share: float, lost: list[LeftOut]
    ) -> list[Passage]:
        """Those that fit a share of the window, best first; the others are added to `lost`."""
        budget = int(self.window * share)
        kept: list[Passage] = []
        for passage in passages:
            tokens = self.counter.text(marked(passage, kind))
            if tokens <= budget:
                budget -= tokens
                kept.append(passage)
            else:
                lost.append(LeftOut(kind, passage.id, tokens))
        return kept

    def _left_out(self, passage: Passage, kind: Literal["document", "note"]) -> LeftOut:
        return LeftOut(kind, passage.id, self.counter.text(marked(passage, kind)))

    async def _cut(
        self,
        history: Sequence[Turn],
        newest: Turn,
        tools: list[dict[str, Any]] | None,
        messages: Callable[[int], list[Message]],
    ) -> tuple[int, int]:
        """The first turn that is kept, and the tokens of the prompt.

        Cuts lie where a block of the history begins, and blocks are counted from the conversation's start: appending
        turns moves none of them. A prompt gets shorter with each cut: the first that fits is found by bisection.
        """
        tokens = await self.counter.prompt(messages(0), tools)
        if tokens <= self.window:
            return 0, tokens
        # A newest turn that is longer than usual should not move the cut, so room for one is kept.
        spare = max(0, int(self.window * self.shares.newest) - self._size(newest))
        cuts = self._block_starts(history)
        low, high = 1, len(cuts) - 1  # the first does not fit; the last, without history, does
        while low < high:
            middle = (low + high) // 2
            if await self.counter.prompt(messages(cuts[middle]), tools) + spare <= self.window:
                high = middle
            else:
                low = middle + 1
        return cuts[low], await self.counter.prompt(messages(cuts[low]), tools)

    def _block_starts(self, history: Sequence[Turn]) -> list[int]:
        """The turns at which a block begins, 0 first, and the end of the history."""
        size = max(1, int(self.window * self.shares.block))
        starts, before, block = [0], 0, 0
        for number, turn in enumerate(history):
            if before // size > block:
                block = before // size
                starts.append(number)
            before += self._size(turn)
        return [*starts, len(history)]

    def _size(self, turn: Turn) -> int:
        return sum(self._message_size(message) for message in turn.messages)

    def _message_size(self, message: Message) -> int:
        """About: what a template writes around a message is the same few tokens for each."""
        calls = message.get("tool_calls") or ()
        return self.counter.text(_text(message)) + sum(self.counter.text(str(call["function"])) for call in calls)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What stands in the prompt however much of the history does."""

    instructions: list[Message]
    newest: Turn


def _instructions(conversation: Conversation, summary: str | None) -> list[Message]:
    """One system message: templates refuse a second, and one that stands elsewhere."""
    texts = [_text(message) for message in conversation.instructions]
    if summary:
        texts.append(marked(Passage(id="earlier", text=summary), "summary"))
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []


def _with_data(newest: Turn, documents: Sequence[Passage], notes: Sequence[Passage]) -> Turn:
    """The newest turn with this turn's data before the user's words."""
    data = [*(marked(note, "note") for note in notes), *(marked(document, "document") for document in documents)]
    if not data:
        return newest
    first, *rest = newest.messages
    return Turn(({**first, "content": "\n".join([*data, "", _text(first)])}, *rest))


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part if isinstance(part, str) else part.get("text", "") for part in content)


def _counted(left_out: Sequence[LeftOut]) -> str:
    counts = {kind: sum(item.kind == kind for item in left_out) for kind in get_args(Kind)}
    return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count)
