"""The events of a response that has ended, made of what is kept of it: its items come whole."""

from collections.abc import Iterator, Sequence

from serving.api.responses.outline import visible, whole
from serving.api.responses.output import Told
from serving.sessions.conversations.records import StoredTurn


def replayed(stored: StoredTurn, include: Sequence[str], after: int | None) -> Iterator[Told]:
    """A reader who has seen events gets those after `after`; and the last one always, for it has all of it."""
    events = list(_events(stored, include))
    last = len(events) - 1
    for number, event in enumerate(events):
        if after is None or number > after:
            yield {**event, "sequence_number": number}
        elif number == last:
            yield {**event, "sequence_number": after + 1}


def _events(stored: StoredTurn, include: Sequence[str]) -> Iterator[Told]:
    begun = {**whole({**stored.facts, "status": "in_progress"}, [], include)}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for position, item in enumerate(visible(item, include) for item in stored.outputs):
        started = {**item, "status": "in_progress"}
        if item["type"] == "message":
            started["content"] = []
        yield {"type": "response.output_item.added", "output_index": position, "item": started}
        if item["type"] == "message":
            for index, part in enumerate(item["content"]):
                place = {"item_id": item["id"], "output_index": position, "content_index": index}
                empty = {**part, "text": ""}
                yield {"type": "response.content_part.added", **place, "part": empty}
                yield {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
                yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
                yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": position, "item": item}
    ended = whole(stored.facts, stored.outputs, include)
    kind = {"cancelled": "failed"}.get(ended["status"], ended["status"])  # there is no event of that name
    yield {"type": f"response.{kind}", "response": ended}
