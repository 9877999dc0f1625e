"""One turn: the context fitted, the model asked, tools run, and again, until there is an answer or a limit is met."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import replace

from serving.engine.request import FinishReason
from serving.errors import ContextLengthError, ConversationStoreError
from serving.generation.answers.parts import ToolCall
from serving.generation.generator import Generator
from serving.generation.request import TextRequest
from serving.orchestrator.context import Context, ContextBuilder, ContextParts, ContextShares, Passage
from serving.orchestrator.control_tokens import ControlTokens
from serving.orchestrator.counter import PromptCounter
from serving.orchestrator.memory.strategies import Recalled
from serving.orchestrator.memory.turn_memory import TurnMemory
from serving.orchestrator.tools.registry import ToolRegistry, ToolResult, ToolScope, failed
from serving.orchestrator.turn_calls import OfferedTools, call_rules, result_message
from serving.orchestrator.turn_events import ContextFitted, Notice, ResultReady, TurnEnd, TurnEnded, TurnEvent
from serving.orchestrator.turn_request import Generate, KeepPages, TurnRequest
from serving.orchestrator.turn_state import Answer, TurnState
from serving.orchestrator.turns import conversation_of

_OUTPUT_SHARE = 0.25  # of the window, kept for an answer whose length the request does not say
_LONGEST_KEPT = 600.0  # seconds
_RESULT_SHARE = 0.5  # of the prompt's window, for the results of one answer's calls together


class TurnRunner:
    """`generator` renders and counts; the model is called through `generate` alone."""

    def __init__(
        self,
        generator: Generator,
        generate: Generate,
        tools: ToolRegistry | None = None,
        *,
        shares: ContextShares | None = None,
        control: ControlTokens | None = None,
        keep: KeepPages | None = None,
        memory: TurnMemory | None = None,
    ) -> None:
        """`keep` keeps the conversation's pages while its tools run; None: they may be evicted meanwhile. `memory` is
        that of users; None: there is none."""
        self._generator = generator
        self._generate = generate
        self._tools = tools or ToolRegistry()
        self._shares = shares or ContextShares()
        self._control = control or ControlTokens(generator.tokenizer)
        self._keep = keep
        self._memory = memory

    async def run(self, turn: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """The events of one turn. Closing it ends the model's answer and cancels the tools that run.

        Raises what `Generate`, `conversation_of` and `ContextBuilder.build` raise, and RequestError for tools and
        choices that exclude each other; then there is no TurnEnded. What a tool raises is its result.
        """
        state = TurnState(turn, self._offered(turn))
        for name in turn.server_tools:
            if self._tools.get(name) is None:
                yield Notice("tool_unavailable", f"the tool {name} is not available now", {"name": name})
        notice = await self._recall(state)
        if notice is not None:
            yield notice
        while True:
            late = state.late()  # tools may have taken what there was
            if late is not None:
                yield late
                return
            try:
                context = await self._fit(state)
            except ContextLengthError as error:
                if not state.rounds:
                    raise
                yield state.ended(FinishReason.LENGTH.value, error.message)
                return
            yield ContextFitted(context)
            answer = Answer(state)
            request = self._request(state, context)
            async with aclosing(self._generate(request)) as deltas:
                async for delta in deltas:
                    for event in answer.see(delta):
                        yield event
            state.add(answer)
            if answer.finish is not FinishReason.STOP:
                yield self._cut_short(state, answer)
                return
            if not answer.calls:
                notice = await self._remember(state, answer)
                if notice is not None:
                    yield notice
                yield state.ended(TurnEnd.STOP)
                return
            limit = state.limit(answer.ours)
            if limit is not None:
                for call in answer.calls:
                    yield ResultReady(call.id, failed(f"not run: {limit.detail}"))
                yield limit
                return
            async with self._kept(request, state), aclosing(self._results(state, answer.ours)) as results:
                async for result in results:
                    yield result
            if len(answer.ours) < len(answer.calls):
                yield state.ended(TurnEnd.CLIENT_CALLS)
                return

    def _offered(self, turn: TurnRequest) -> OfferedTools:
        if turn.tool_choice == "none":
            return OfferedTools(here=[], clients=[])
        here = self._tools.offered(turn.server_tools, turn.tool_notes)
        offered = OfferedTools(here=here, clients=list(turn.tools))
        offered.check()
        call_rules(turn, offered, first=True)
        return offered

    async def _recall(self, state: TurnState) -> Notice | None:
        """What the memory adds to this turn's prompts; never so much that they do not fit. A turn goes on without a
        memory that is away."""
        if self._memory is None:
            return None
        try:
            state.remembers = await self._memory.begin(state.turn)
            if not state.remembers:
                return None
            context = await self._fit(state)
            state.recalled = await self._memory.recall(state.turn, context.messages)
        except ConversationStoreError as error:
            state.remembers = False
            return Notice("memory_unavailable", error.message)
        try:
            await self._fit(state)
        except ContextLengthError:
            state.recalled = Recalled()
        notes = [note.id for note in state.recalled.notes]
        if not notes and state.recalled.summary is None:
            return None
        facts = {"notes": notes, "summary": state.recalled.summary is not None}
        return Notice("memory_used", "what this user said earlier is part of the prompt", facts)

    async def _remember(self, state: TurnState, answer: Answer) -> Notice | None:
        if self._memory is not None and state.remembers and state.turn.is_kept:
            try:
                await self._memory.remember(state.turn, answer.text)
            except ConversationStoreError as error:
                return Notice("memory_unavailable", error.message)
        return None

    async def _fit(self, state: TurnState) -> Context:
        turn = state.turn
        summary = state.recalled.summary if turn.summary is None else turn.summary
        builder = ContextBuilder(
            PromptCounter(
                generator=self._generator, variables=turn.chat_template_kwargs, reasoning_effort=turn.reasoning_effort
            ),
            self._window(turn),
            turn.truncation,
            self._shares,
        )
        clean = self._control.broken
        return await builder.build(
            ContextParts(
                conversation=conversation_of(state.messages),
                tools=state.offered.shown,
                summary=None if summary is None else clean(summary),
                notes=[_clean(note, self._control) for note in (*turn.notes, *state.recalled.notes)],
                documents=[_clean(document, self._control) for document in turn.documents],
            )
        )

    def _window(self, turn: TurnRequest) -> int:
        """The tokens that a prompt may have. Raises ContextLengthError where the output leaves none."""
        most, wanted = self._generator.max_model_len, turn.options.max_tokens
        if wanted is None and turn.truncation == "disabled":
            return most - 1  # nothing would be left out for a longer answer
        if wanted is None:
            return most - max(1, int(most * _OUTPUT_SHARE))
        if wanted >= most:
            raise ContextLengthError(
                f"max_tokens is {wanted}, but the model's window has {most} tokens for prompt and output together",
                param="max_tokens",
            )
        return most - wanted

    def _request(self, state: TurnState, context: Context) -> TextRequest:
        turn = state.turn
        calls = call_rules(turn, state.offered, first=not state.rounds)
        options, left = turn.options, state.tokens_left
        if left is not None and options.max_tokens is not None:
            options = replace(options, max_tokens=min(left, options.max_tokens))
        elif left is not None:
            options = replace(options, default_max_tokens=min(left, options.default_max_tokens or left))
        return TextRequest(
            request_id=turn.request_id if not state.rounds else f"{turn.request_id}-{state.rounds}",
            messages=context.messages,
            tools=state.offered.shown,
            chat_template_kwargs=turn.chat_template_kwargs,
            reasoning_effort=turn.reasoning_effort,
            options=options,
            grammar=turn.grammar,
            calls=calls,
            cache_salt=turn.cache_salt,
            priority=turn.priority,
            tenant=turn.tenant,
            user=turn.user,
            deadline_seconds=None if turn.budgets.seconds is None else state.seconds_left,
        )

    def _cut_short(self, state: TurnState, answer: Answer) -> TurnEnded:
        """The model's answer did not come to its own end."""
        finish = answer.finish
        if finish is FinishReason.LENGTH and state.tokens_left == 0:
            return state.ended(TurnEnd.TOKENS, f"the turn has used its {state.turn.budgets.completion_tokens} tokens")
        if finish is FinishReason.DEADLINE and state.turn.budgets.seconds is not None:
            return state.ended(TurnEnd.TIME, f"the turn has used its {state.turn.budgets.seconds:g} s")
        return state.ended(FinishReason.ABORT.value if finish is None else finish.value)

    def _kept(self, request: TextRequest, state: TurnState) -> AbstractAsyncContextManager[None]:
        """The prompt with its answer is what the next prompt begins with."""
        if self._keep is None:
            return nullcontext()
        messages = [*(request.messages or []), state.messages[-1]]
        seconds = min(state.seconds_left, _LONGEST_KEPT)
        return self._keep(replace(request, messages=messages, add_generation_prompt=False), seconds)

    async def _results(self, state: TurnState, calls: Sequence[ToolCall]) -> AsyncGenerator[ResultReady, None]:
        """Runs the calls beside each other; each result as it is there. The messages have them in the calls' order."""
        room = int(self._window(state.turn) * _RESULT_SHARE) // max(1, len(calls))
        tasks = {asyncio.create_task(self._result(state, call, room)): call for call in calls}
        found: dict[str, ToolResult] = {}
        try:
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    call = tasks[task]
                    found[call.id] = task.result()
                    state.files |= found[call.id].files
                    yield ResultReady(call.id, found[call.id])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        state.messages += [result_message(call, found[call.id]) for call in calls]

    async def _result(self, state: TurnState, call: ToolCall, room: int) -> ToolResult:
        turn = state.turn
        if call.name not in state.offered.names_here:
            return failed(f"there is no tool {call.name[:100]!r} here")
        scope = ToolScope(
            tenant=turn.tenant,
            user=turn.user,
            request_id=turn.request_id,
            deadline=state.deadline,
            settings=turn.server_tools.get(call.name, {}),
            files=dict(state.files),
        )
        result = await self._tools.run(call.name, call.arguments, scope)
        state.tools_run += 1
        return replace(result, text=await self._cut(result.text, room))

    async def _cut(self, text: str, room: int) -> str:
        """The text within `room` tokens, control tokens broken; where it is longer, its beginning, and how much
        is left out."""
        counter = PromptCounter(generator=self._generator)
        first = text[: room * self._generator.tokenizer.most_chars_per_token]  # of more, none could be kept
        broken = kept = self._control.broken(first)
        while kept and (tokens := await counter.long_text(kept)) > room:
            kept = kept[: min(len(kept) - 1, int(len(kept) * room / tokens))]
        left_out = len(text) - len(first) + len(broken) - len(kept)
        return f"{kept}\n[{left_out} more characters are left out]" if left_out else kept


def _clean(passage: Passage, control: ControlTokens) -> Passage:
    return replace(passage, text=control.broken(passage.text), title=control.broken(passage.title))
