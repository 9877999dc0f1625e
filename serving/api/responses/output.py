"""A turn's events as the items of an output, and as the events that tell of them.

An item that is written down comes before the event that tells of it, and before the turn goes on: what a client has
seen whole is kept, and so is a call before its tool runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.api.responses.call_items import FUNCTION, CallItem, interrupted, unanswered
from serving.api.responses.file_mentions import FileMentions
from serving.api.responses.items import output_text, reasoning_text, shown
from serving.api.responses.outline import visible
from serving.orchestrator.retrieval.citations import CitedText, Source
from serving.orchestrator.tools.code_interpreter import KEPT
from serving.orchestrator.tools.workspace import WorkspaceFile
from serving.orchestrator.turn_events import (
    CallArguments,
    CallBegun,
    CallReady,
    ContextFitted,
    ReasoningOut,
    ResultReady,
    TextOut,
    TurnEvent,
)
from serving.sessions.conversations.records import Item

Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Write:
    """The item as it is now, at its place in the output."""

    position: int
    item: Item


class Output:
    def __init__(
        self,
        response_id: str,
        labels: Mapping[str, str],
        clients: frozenset[str],
        new_id: Callable[[str], str],
        include: tuple[str, ...] = (),
    ) -> None:
        """`labels` of tools that run here, `clients`: the names of those that do not. `new_id` makes an item's id."""
        self.sources: list[Source] = []  # what answers may cite: of all searches of the conversation so far
        self.items: list[Item] = []
        self._response_id = response_id
        self._labels = labels
        self._clients = clients
        self._new_id = new_id
        self._include = include
        self._container_id: str | None = None
        self._files: dict[str, WorkspaceFile] = {}  # of the container, by name
        self._answers = 0
        self._text: _Text | None = None  # of the message that is open, the last item
        self._thoughts: list[str] = []  # of the reasoning that is open, the last item
        self._calls: dict[str, CallItem] = {}  # by call id

    def use_container(self, container_id: str, files: Iterable[WorkspaceFile]) -> None:
        """Of the programs that run from now on; answers may name its `files`."""
        self._container_id = container_id
        self._files |= {file.filename: file for file in files}

    def see(self, event: TurnEvent) -> Iterator[Write | Told]:
        match event:
            case ContextFitted():
                yield from self._close("completed")
                self._answers += 1
            case ReasoningOut(text):
                yield from self._close_text("completed")
                yield from self._add_reasoning(text)
            case TextOut(text):
                yield from self._close_reasoning("completed")
                yield from self._add_text(text)
            case CallBegun(call_id, name):
                yield from self._close("completed")
                yield from self._begin_call(call_id, name)
            case CallArguments(call_id, text):
                yield from self._calls[call_id].arguments(text)
            case CallReady(call, runs_here):
                made = self._calls[call.id]
                told = list(made.ready(call))
                yield self._write(made.position)
                yield from told
                if not runs_here:
                    yield self._item_event("done", made.position)
            case ResultReady(call_id, result):
                made = self._calls[call_id]
                told = list(made.result(result))
                self.sources += sources_of([made.item])
                self._files |= {facts["filename"]: WorkspaceFile(**facts) for facts in result.facts.get(KEPT, ())}
                yield self._write(made.position)
                yield from told
                if made.item["type"] != "function_call":
                    yield self._item_event("done", made.position)

    def end(self, *, whole: bool) -> Iterator[Write | Told]:
        """Of a turn that came to its end: the model's, or one that its bounds made."""
        yield from self._close("completed" if whole else "incomplete")
        yield from self._break_off(interrupted, "the answer was cut off, and the tool did not run")

    def cut(self) -> Iterator[Write | Told]:
        """Of a turn that did not."""
        yield from self._close("incomplete")
        yield from self._break_off(unanswered, "the turn was ended; nobody knows whether the tool has done its work")

    def _close(self, status: str) -> Iterator[Write | Told]:
        yield from self._close_reasoning(status)
        yield from self._close_text(status)

    def _add_reasoning(self, text: str) -> Iterator[Told]:
        if not self._thoughts:
            item = {"id": self._new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": []}
            position = self._add({**item, "content": []})
            yield self._item_event("added", position)
            yield {**self._part_event("content_part.added"), "part": reasoning_text("")}
        self._thoughts.append(text)
        yield {**self._part_event("reasoning_text.delta"), "delta": text}

    def _close_reasoning(self, status: str) -> Iterator[Write | Told]:
        if not self._thoughts:
            return
        part, self._thoughts = reasoning_text("".join(self._thoughts)), []
        position = len(self.items) - 1
        self.items[position] |= {"status": status, "content": [part]}
        yield self._write(position)
        yield {**self._part_event("reasoning_text.done"), "text": part["text"]}
        yield {**self._part_event("content_part.done"), "part": part}
        yield self._item_event("done", position)

    def _add_text(self, text: str) -> Iterator[Told]:
        if self._text is None:
            self._text = _Text(self.sources, self._files.values())
            item = {"id": self._new_id("msg"), "type": "message", "status": "in_progress", "role": "assistant"}
            position = self._add({**item, "content": []})
            yield self._item_event("added", position)
            yield {**self._part_event("content_part.added"), "part": output_text("")}
        yield from self._tell(self._text, self._text.feed(text))

    def _close_text(self, status: str) -> Iterator[Write | Told]:
        text, self._text = self._text, None
        if text is None:
            return
        yield from self._tell(text, text.finish())
        position = len(self.items) - 1
        self.items[position] |= {"status": status, "content": [text.part], **text.hidden}
        yield self._write(position)
        yield {**self._part_event("output_text.done"), "text": text.part["text"], "logprobs": []}
        yield {**self._part_event("content_part.done"), "part": text.part}
        yield self._item_event("done", position)

    def _tell(self, text: "_Text", delta: str) -> Iterator[Told]:
        if delta:
            yield {**self._part_event("output_text.delta"), "delta": delta, "logprobs": []}
        for number, annotation in text.new_annotations():
            told = {"annotation_index": number, "annotation": annotation}
            yield {**self._part_event("output_text.annotation.added"), **told}

    def _begin_call(self, call_id: str, name: str) -> Iterator[Told]:
        label = FUNCTION if name in self._clients else self._labels.get(name, "weft")
        made = CallItem.begun(label, call_id, name, len(self.items), self._new_id, self._container_id)
        self._calls[call_id] = made
        self._add(made.item)
        yield self._item_event("added", made.position)
        yield from made.told_begun()

    def _break_off(self, ended: Callable[[Item, str], Item], why: str) -> Iterator[Write | Told]:
        for position, item in enumerate(self.items):
            broken = ended(item, why)
            if broken is not item:
                self.items[position] = broken
                yield self._write(position)
                yield self._item_event("done", position)

    def _add(self, item: Item) -> int:
        item["_answer"] = f"{self._response_id}:{self._answers}"
        self.items.append(item)
        return len(self.items) - 1

    def _write(self, position: int) -> Write:
        return Write(position, dict(self.items[position]))

    def _item_event(self, what: str, position: int) -> Told:
        item = self.items[position]
        told = visible(item, self._include) if what == "done" else shown(item)
        return {"type": f"response.output_item.{what}", "output_index": position, "item": told}

    def _part_event(self, what: str) -> Told:
        position = len(self.items) - 1
        place = {"item_id": self.items[position]["id"], "output_index": position, "content_index": 0}
        return {"type": f"response.{what}", **place}


class _Text:
    """A message as it is told: what the model cites stands beside it, and the files that it names."""

    def __init__(self, sources: Sequence[Source], files: Iterable[WorkspaceFile]) -> None:
        self._cited = CitedText(sources) if sources else None
        self._mentions = FileMentions(files)
        self._annotations: list[dict[str, Any]] = []
        self._written: list[str] = []
        self._told: list[str] = []
        self._passages = 0  # among the annotations
        self._announced = 0  # annotations

    @property
    def part(self) -> dict[str, Any]:
        return {**output_text("".join(self._told)), "annotations": self._annotations}

    @property
    def hidden(self) -> dict[str, str]:
        """The text as the model wrote it, where that is another: the model reads it so again."""
        written = "".join(self._written)
        return {} if written == "".join(self._told) else {"_text": written}

    def feed(self, text: str) -> str:
        self._written.append(text)
        return self._add(text if self._cited is None else self._cited.feed(text))

    def finish(self) -> str:
        return self._add("" if self._cited is None else self._cited.finish(), last=True)

    def new_annotations(self) -> Iterator[tuple[int, dict[str, Any]]]:
        while self._announced < len(self._annotations):
            yield self._announced, self._annotations[self._announced]
            self._announced += 1

    def _add(self, told: str, *, last: bool = False) -> str:
        self._told.append(told)
        if self._cited is not None:
            self._annotations += self._cited.annotations[self._passages :]
            self._passages = len(self._cited.annotations)
        self._annotations += self._mentions.feed(told, last=last)
        return told


def sources_of(items: Iterable[Item]) -> Iterator[Source]:
    """What searches have found, as far as it is told by items. A client may have sent them: what is no result of a
    search here cannot be cited."""
    for item in items:
        if item["type"] == "file_search_call":
            yield from (result for result in item.get("results") or () if _can_be_cited(result))


def _can_be_cited(result: dict[str, Any]) -> bool:
    return all(isinstance(result.get(name), str) for name in ("marker", "file_id", "filename"))
