"""Deltas to messages of `weft.v1`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from serving.api.caller import Caller
from serving.api.chat_body import ChatBody
from serving.api.chat_choice import Seen
from serving.api.chat_reply import ChatReply
from serving.api.completion_body import CompletionBody
from serving.api.completion_reply import CompletionReply
from serving.api.grpc.gathered import gathered
from serving.api.reply_parts import fallback_of, likeliest
from serving.api.service import Service
from serving.client import schema
from serving.generation.request import TextDelta, TextLogprobs, TokenText


class GrpcReply:
    """One request's answer. The checks, the tool calls and the order of things are those of the HTTP replies."""

    def __init__(self, service: Service, body: ChatBody | CompletionBody, caller: Caller) -> None:
        """Raises RequestError for what the body asks for and this model cannot do."""
        service.check_served(body.model)
        body.check_together()
        if isinstance(body, ChatBody):
            self._chat: ChatReply | None = ChatReply(service, body, caller, reuses=False)
            self.generation = self._chat.generation
        else:
            self._chat = None
            self.generation = CompletionReply(service, body, caller).generation
        self._service = service
        self._weights: str | None = None  # that drew the last token
        self._body = body
        self._id, self._created = caller.request_id, int(service.now())

    async def whole(self) -> Any:
        """A GenerateReply."""
        joined: dict[int, Any] = {}
        texts: dict[int, list[str]] = {}
        thoughts: dict[int, list[str]] = {}
        reply = schema.GenerateReply()
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                shown = self._choice(delta)
                texts.setdefault(delta.index, []).append(shown.text)
                thoughts.setdefault(delta.index, []).append(shown.reasoning)
                joined.setdefault(delta.index, schema.Choice()).MergeFrom(shown)
                if delta.prompt_logprobs is not None:
                    asked = likeliest(delta.prompt_logprobs, self._body.prompt_logprobs or 0)
                    reply.prompt_logprobs.extend(token_logprobs(entry) for entry in asked if entry is not None)
        reply.MergeFrom(schema.GenerateReply(**self._head))
        for index in sorted(joined):
            joined[index].text, joined[index].reasoning = "".join(texts[index]), "".join(thoughts[index])
            reply.choices.append(joined[index])
        reply.prompt_token_ids.extend(self._prompt_token_ids())
        reply.usage.CopyFrom(self._usage())
        if self._weights is not None:
            reply.system_fingerprint = self._weights
        return reply

    async def chunks(self) -> AsyncGenerator[Any, None]:
        """GenerateChunks."""
        first = True
        ahead = self._service.streams.max_pending
        async with aclosing(gathered(self._choices(), ahead)) as lists:
            async for choices in lists:
                head = {**self._head, "prompt_token_ids": self._prompt_token_ids()} if first else {}
                yield schema.GenerateChunk(**head, choices=choices)
                first = False
        yield schema.GenerateChunk(usage=self._usage(), system_fingerprint=self._weights)

    @property
    def _head(self) -> dict[str, Any]:
        """Once the model is known that answers."""
        answered = self.generation
        return {"id": self._id, "model": answered.model, "created": self._created, **fallback_of(answered)}

    async def _choices(self) -> AsyncGenerator[Any, None]:
        """What each delta shows, where it shows something; the first one does by being the first."""
        first = True
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                choice = self._choice(delta)
                if first or choice.ByteSize() > _bare_size(delta.index):
                    yield choice
                first = False

    def _choice(self, delta: TextDelta) -> Any:
        """What this delta shows."""
        self._weights = delta.weights
        if self._chat is None:
            seen = Seen(delta.text, finish_reason=delta.finish_reason.value if delta.finish_reason else None)
        else:
            seen = self._chat.choice(delta.index).show(delta)
        choice = schema.Choice(index=delta.index, text=seen.content, reasoning=seen.reasoning)
        if seen.tool_calls:
            choice.tool_calls.extend(_tool_calls(seen))
        if seen.finish_reason is not None:
            choice.finish_reason = f"FINISH_REASON_{seen.finish_reason.upper()}"
            _set_stop_reason(choice, delta.stop_reason)
            choice.flags.extend(schema.ModerationFlag(category=name, score=score) for name, score in delta.flags)
        if self._body.return_token_ids:
            choice.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            choice.logprobs.extend(map(token_logprobs, delta.logprobs))
        return choice

    def _prompt_token_ids(self) -> tuple[int, ...]:
        return self.generation.prepared[0].prompt_token_ids if self._body.return_token_ids else ()

    def _usage(self) -> Any:
        generation = self.generation
        return schema.Usage(
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
            completion_tokens=generation.completion_tokens,
            reasoning_tokens=0 if self._chat is None else self._chat.reasoning_tokens,
        )


def token_logprobs(entry: TextLogprobs) -> Any:
    return schema.TokenLogprobs(
        token=_token(entry.token),
        logprob=entry.logprob,
        rank=entry.rank,
        top=[{"token": _token(token), "logprob": logprob} for token, logprob in entry.top],
    )


def _token(token: TokenText) -> Any:
    return schema.Token(id=token.token_id, text=token.token, bytes=token.token_bytes)


def _tool_calls(seen: Seen) -> list[Any]:
    return [schema.ToolCall(id=call["id"], function=call["function"]) for call in seen.tool_calls]


def _set_stop_reason(choice: Any, reason: str | int | None) -> None:
    if isinstance(reason, str):
        choice.stop_string = reason
    elif reason is not None:
        choice.stop_token_id = reason


def _bare_size(index: int) -> int:
    """Of a choice that says nothing but its number."""
    return schema.Choice(index=index).ByteSize()
