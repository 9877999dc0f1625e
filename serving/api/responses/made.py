"""One response, from its beginning to its end: the turn is run, and written down as it goes.

Its events are numbered from 0. A client that leaves closes the events' generator, and with it the turn; what was said
until then is kept.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from serving.api.answered import Answer
from serving.api.caller import Caller
from serving.api.containers.container_store import ContainerOwner, ContainerStore
from serving.api.files.file_store import FileStore
from serving.api.model_choice import chosen_model
from serving.api.responses.asked import their_param, turn_request
from serving.api.responses.body import ResponsesBody
from serving.api.responses.container_files import ContainerFiles
from serving.api.responses.items import stored_items
from serving.api.responses.outline import is_whole, moderation_notices, outline_of, whole
from serving.api.responses.output import Output, Told, Write, sources_of
from serving.api.responses.owner import owner_for
from serving.api.responses.record import Record, StoredRecord, Unrecorded
from serving.api.responses.tools import AnyTool, turn_tools
from serving.api.responses.turn_container import LOST, container_of, in_container
from serving.api.responses.turn_stores import check_stores
from serving.api.service import Service
from serving.api.turns import ModelCalls, turn_runner
from serving.errors import ConflictError, ConversationStoreError, InternalError, QuotaError, RequestError, WeftError
from serving.generation.request import TextRequest
from serving.observability.logs import log_event, log_failure
from serving.orchestrator.retrieval.catalog import Catalog
from serving.orchestrator.turn_calls import OfferedTools
from serving.orchestrator.turn_events import ContextFitted, Notice, TurnEnded, TurnEvent
from serving.orchestrator.turn_request import TurnRequest
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.ids import RESPONSE, new_id, new_tree, tree_of
from serving.sessions.conversations.records import Item

BACKGROUND_PATIENCE_SECONDS = 600.0  # nobody waits for its first token

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnService:
    """What turns need beside what every request does."""

    service: Service
    conversations: Conversations
    files: FileStore | None = None  # that programs may read
    containers: ContainerStore | None = None  # that they leave theirs in
    stores: Catalog | None = None  # that are searched


class MadeResponse:
    def __init__(self, turns: TurnService, body: ResponsesBody, caller: Caller) -> None:
        """Raises RequestError for what the body asks for and this server cannot do."""
        body.check_together()
        service = turns.service
        self._tools = turn_tools(body.tools or (), service.toolbox)
        if body.tools and body.tool_choice != "none":
            service.check_tool_format(body.model)
        self._service = service  # of the model that answers, once it is chosen
        self._turns = turns
        self._body = body
        if body.background:
            caller = replace(caller, patience_seconds=BACKGROUND_PATIENCE_SECONDS)
        self._caller = caller
        tree = tree_of(body.previous_response_id or body.conversation_id or "") or new_tree()
        self.id = new_id(RESPONSE, tree)
        self.failure: WeftError | None = None  # what ended it early; set before a cancellation, why that is
        self.generation = ModelCalls(service, caller, stream=bool(body.stream))
        self._outline = outline_of(body, self.id, body.model or service.card.name, service.now())
        for label in self._tools.unavailable:
            self._outline.note(Notice("tool_unavailable", f"the server {label} is not available now", {"name": label}))
        self._inputs = stored_items(body.input, partial(new_id, tree=tree))
        self._output = Output(
            self.id,
            self._tools.labels,
            frozenset(tool["function"]["name"] for tool in self._tools.clients),
            partial(new_id, tree=tree),
            tuple(body.include or ()),
        )
        owner = owner_for(caller.principal, turns.conversations.quota, body.user_id)
        self._record: Record = (
            StoredRecord(
                turns.conversations,
                owner,
                self.id,
                parent=body.previous_response_id,
                conversation=body.conversation_id,
                created_at=self._outline.created_at,
            )
            if body.is_stored
            else Unrecorded(turns.conversations, owner, parent=body.previous_response_id)
        )
        self.owner = owner
        self._told = 0
        self._request: TurnRequest | None = None

    @property
    def response(self) -> dict[str, Any]:
        return whole(self._outline.facts, self._output.items, self._body.include or ())

    async def begin(self, *, queued: bool = False) -> None:
        """Writes down that it has begun. Raises what Conversations.begin raises, and RequestError."""
        if queued:
            self._outline.status = "queued"
        asked, given = self._body.tools or (), ContainerFiles(self._turns.files, self._service.toolbox)
        self._tools = await given.given(self.owner.tenant, asked, self._tools)
        await check_stores(self._turns.stores, self.owner.tenant, asked)
        history = await self._record.begin(self._outline.facts, self._inputs)
        try:
            self._output.sources += sources_of([*history, *self._inputs])
            await self._find_container(asked, [*history, *self._inputs])
            self._request = turn_request(
                self._body, self._caller, [*history, *self._inputs], self._tools, self._turns.service.toolbox.registry
            )
            await self._choose(self._request)
        except BaseException:  # also where the client has left
            await self._record.forget()
            raise

    async def _find_container(self, asked: Sequence[AnyTool], items: Sequence[Item]) -> None:
        principal = self._caller.principal
        owner = ContainerOwner(tenant=principal.tenant, user=self.owner.user, own=principal.limits.storage)
        workspace = await container_of(self._turns.containers, owner, asked, items)
        if workspace is not None:
            self._tools = in_container(self._tools, workspace)
            self._output.use_container(workspace.id, [file.written for file in workspace.found])
            if workspace.lost is not None:
                self._outline.note(Notice("container_lost", LOST, {"container_id": workspace.lost}))

    async def _choose(self, turn: TurnRequest) -> None:
        """The model of the whole turn. What may be left out of the prompt need not fit."""
        here = self._service.toolbox.registry.offered(turn.server_tools, turn.tool_notes)
        offered = OfferedTools(here=here, clients=list(turn.tools))
        messages = list(turn.messages)
        asked = TextRequest(
            request_id=turn.request_id,
            messages=messages,
            tools=None if turn.tool_choice == "none" else offered.shown,
            grammar=turn.grammar,
            chat_template_kwargs=turn.chat_template_kwargs,
            reasoning_effort=turn.reasoning_effort,
            model=self._body.model,
            may_fall_back=self._body.fallback is not False,
            priority=turn.priority,
        )
        least = asked if turn.truncation == "disabled" else replace(asked, messages=messages[-1:])
        choice = await chosen_model(self._service, [asked], self._caller, least=[least])
        self._service = choice.service
        self.generation.use(choice.service)
        self._outline.model = choice.name
        answer = Answer(self.owner.tenant, choice.name, self._caller.request_id)
        choice.service.answered.note(self.id, answer)
        if choice.fallback is not None:
            self._outline.note(Notice("fallback", choice.fallback.text, choice.fallback.facts))

    async def whole(self) -> dict[str, Any]:
        """The response as it is in the end. Raises as `events`, and the WeftError that ended it."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        if self.failure is not None:
            raise self.failure
        return self.response

    async def events(self) -> AsyncGenerator[Told, None]:
        """Raises the WeftError that came before anything was generated: then there is no such response."""
        await self.begin()
        preface = list(self._preface())
        steps = self._steps()
        try:
            async with aclosing(steps):
                async for told in steps:
                    for early in preface:
                        yield self._numbered(early)
                    preface = []
                    yield self._numbered(told)
        except WeftError as error:
            if preface:
                await self._record.forget()
                raise self._in_their_words(error) from None
            for told in await self._failed(self._in_their_words(error)):
                yield told
        except Exception:  # a fault of the server's own
            await self._failed(InternalError())
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if preface and not self._output.items:
                await self._record.forget()
            else:
                await self._cancelled()
            raise

    async def background(self) -> AsyncGenerator[Told, None]:
        """As `events`, of a response that was begun. Whatever happens ends it, and raises nothing but what ends the
        task that reads."""
        yield self._numbered({"type": "response.created", "response": self.response})
        yield self._numbered({"type": "response.queued", "response": self.response})
        self._outline.status = "in_progress"
        try:
            await self._record.change(self._outline.facts)
            yield self._numbered({"type": "response.in_progress", "response": self.response})
            async with aclosing(self._steps()) as steps:
                async for told in steps:
                    yield self._numbered(told)
        except WeftError as error:
            for told in await self._failed(self._in_their_words(error)):
                yield told
        except Exception as error:  # told without its text, and logged
            log_failure(logger, "a response failed", error, request_id=self._caller.request_id)
            failure = InternalError()
            for told in await self._failed(failure):
                yield told
        except asyncio.CancelledError:  # its readers are told
            if self.failure is None:
                self._outline.cancel()
            else:
                self._outline.fail(self.failure)
            for told in await self._cut():
                yield told
            yield self._numbered({"type": "response.failed", "response": self.response})
            raise
        except GeneratorExit:
            await self._cancelled()
            raise

    async def _steps(self) -> AsyncGenerator[Told, None]:
        """What is to be told once the model answers, in its order, and written first where it is to be kept."""
        assert self._request is not None
        runner = turn_runner(self._service, self.generation)
        ended: TurnEnded | None = None
        async with aclosing(runner.run(self._request)) as events:
            async for event in events:
                if isinstance(event, TurnEnded):
                    ended = event
                    break
                async for told in self._written(self._seen(event)):
                    yield told
        assert ended is not None
        for notice in moderation_notices(self.generation.noted):
            self._outline.note(notice)
        async for told in self._written(self._output.end(whole=is_whole(ended))):
            yield told
        self._outline.end(ended, self._turns.service.now())
        await self._record.end(self._outline.facts, joins=True)
        yield {"type": f"response.{self._outline.status}", "response": self.response}

    def _seen(self, event: TurnEvent) -> Iterable[Write | Told]:
        if isinstance(event, ContextFitted):
            self._outline.fit(event.context)
        elif isinstance(event, Notice):
            self._outline.note(event)
        return self._output.see(event)

    async def _written(self, steps: Iterable[Write | Told], *, last: bool = False) -> AsyncGenerator[Told, None]:
        for step in steps:
            if isinstance(step, Write):
                await self._put(step, last=last)
            else:
                yield step

    async def _put(self, step: Write, *, last: bool) -> None:
        """An item that finds no room is the last: it was told while it grew, so it is kept."""
        try:
            await self._record.put(step.position, step.item, last=last)
        except QuotaError:
            await self._record.put(step.position, step.item, last=True)
            raise

    def _preface(self) -> Iterator[Told]:
        yield {"type": "response.created", "response": self.response}
        yield {"type": "response.in_progress", "response": self.response}

    async def _failed(self, error: WeftError) -> list[Told]:
        self.failure = error
        self._outline.fail(error)
        told = await self._cut()
        return [*told, self._numbered({"type": "response.failed", "response": self.response})]

    async def _cancelled(self) -> None:
        self._outline.cancel()
        await self._cut()

    async def _cut(self) -> list[Told]:
        """Ends what is broken off, with what there is of it. Written before anything is told: who is told may leave."""
        told: list[Told] = []
        try:
            async for event in self._written(self._output.cut(), last=True):
                told.append(self._numbered(event))
            await self._record.end(self._outline.facts, joins=bool(self._output.items))
        except ConflictError:  # such as one whose conversation was deleted: there is nothing left to end
            log_event(logger, "a response was ended or erased by others", request_id=self._caller.request_id)
            self._record.abandon(self._outline.ending)
        except (ConversationStoreError, RequestError) as error:  # its lease will be over, and then somebody ends it
            log_failure(logger, "a response could not be ended", error, request_id=self._caller.request_id)
            self._record.abandon(self._outline.ending)
        except BaseException:  # cancelled a second time
            self._record.abandon(self._outline.ending)
            raise
        return told

    def _numbered(self, told: Told) -> Told:
        self._told += 1
        return {**told, "sequence_number": self._told - 1}

    def _in_their_words(self, error: WeftError) -> WeftError:
        """An error about a field of the chat that was made of the body, as one about the body's."""
        if not isinstance(error, RequestError) or error.param is None:
            return error
        name = their_param(error.param, self._body)
        return error if name == error.param else error.renamed(name)
