"""The answer to POST /v1/chat/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from serving.api.caller import Caller
from serving.api.chat_body import ChatBody, plain
from serving.api.chat_choice import ChatChoice
from serving.api.chunks import Chunks, encode
from serving.api.followed_generation import FollowedGeneration
from serving.api.generation import Generation
from serving.api.output_format import asked_format
from serving.api.reply_parts import chat_logprobs, fallback_of, flagged, prompt_logprobs, usage_of
from serving.api.reused_answer import ReusedAnswer
from serving.api.service import Service
from serving.generation.request import TextDelta, TextRequest


class ChatReply:
    """One request's answer, streamed or whole."""

    def __init__(
        self,
        service: Service,
        body: ChatBody,
        caller: Caller,
        *,
        source: FollowedGeneration | None = None,
        created: int | None = None,
        reuses: bool = True,
    ) -> None:
        """`source` and `created` are those of a reply that began earlier. `reuses`: an earlier answer may serve, and
        the reply says so.

        Raises RequestError for what the body asks for and this model cannot do.
        """
        self._body = body
        if body.offered_tools is not None:
            service.check_tool_format(body.model)
        newer = {} if body.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        newer["grammar"] = _grammar_param(body)
        request = text_request(body, caller.request_id)
        self._reused = None if source or not reuses else _reused(service, body, request, caller)
        self.generation = source or Generation(
            service, [request], caller, stream=bool(body.stream), client_names=newer, reused=self._reused
        )
        self._id = f"chatcmpl-{caller.request_id}"
        self.created = int(service.now()) if created is None else created
        self._choices: dict[int, ChatChoice] = {}
        self._weights: str | None = None

    async def whole(self) -> bytes:
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                self._weights = delta.weights
                self.choice(delta.index).keep(delta)
        generation, body = self.generation, self._body
        reply: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion",
            "created": self.created,
            "model": generation.model,
            "choices": [
                self._choices[index].reply(logprobs=bool(body.logprobs), token_ids=bool(body.return_token_ids))
                for index in sorted(self._choices)
            ],
            "usage": self._usage(),
            "service_tier": None,
            "system_fingerprint": self._weights,
            **self._told,
        }
        if body.prompt_logprobs is not None:
            reply["prompt_logprobs"] = prompt_logprobs(self._choices[0].prompt_logprobs)
        if body.return_token_ids:
            reply["prompt_token_ids"] = generation.prepared[0].prompt_token_ids
        return encode(reply)

    async def events(self) -> AsyncGenerator[bytes, None]:
        chunks: Chunks | None = None
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                chunks = chunks or self._begun()
                chunks.sign(delta.weights)
                if delta.index not in self._choices:
                    yield self._first(chunks, delta)
                if data := self._chunk(chunks, delta):
                    yield data
        if self._body.include_usage and chunks is not None:
            yield chunks.usage(self._usage())

    def _begun(self) -> Chunks:
        """Once the model is known that answers."""
        return Chunks(
            "chat.completion.chunk",
            self._id,
            self.created,
            self.generation.model,
            include_usage=self._body.include_usage,
            text_field='"delta":{"content":',
        )

    def choice(self, index: int) -> ChatChoice:
        if index not in self._choices:
            body = self._body
            self._choices[index] = ChatChoice(
                index,
                tools=body.offered_tools,
                reply_id=self._id,
                include_reasoning=body.include_reasoning is not False,
            )
        return self._choices[index]

    def _first(self, chunks: Chunks, delta: TextDelta) -> bytes:
        start = {"role": "assistant", "content": ""}
        choice = {"index": delta.index, "delta": start, "logprobs": None, "finish_reason": None}
        if not self._body.return_token_ids:
            return chunks.choice(choice, self._usage_so_far(delta), **fallback_of(self.generation))
        prompt = self.generation.prepared[0].prompt_token_ids
        more = {"prompt_token_ids": prompt, **fallback_of(self.generation)}
        return chunks.choice(choice, self._usage_so_far(delta), **more)

    def _chunk(self, chunks: Chunks, delta: TextDelta) -> bytes | None:
        body = self._body
        seen = self.choice(delta.index).show(delta)
        rich = bool(body.logprobs or body.return_token_ids or body.continuous_usage)
        if not (rich or seen.reasoning or seen.tool_calls or seen.finish_reason):
            return chunks.text(delta.index, seen.content) if seen.content else None
        fields: dict[str, Any] = {}
        if seen.reasoning:
            fields["reasoning_content"] = seen.reasoning
        if seen.content:
            fields["content"] = seen.content
        if seen.tool_calls:
            fields["tool_calls"] = seen.tool_calls
        choice: dict[str, Any] = {
            "index": delta.index,
            "delta": fields,
            "logprobs": chat_logprobs(delta.logprobs) if body.logprobs else None,
            "finish_reason": seen.finish_reason,
        }
        if seen.finish_reason:
            choice["stop_reason"] = delta.stop_reason
            choice |= flagged(delta.flags)
        if body.return_token_ids:
            choice["token_ids"] = delta.token_ids
        return chunks.choice(choice, self._usage_so_far(delta), **(self._told if seen.finish_reason else {}))

    @property
    def _told(self) -> dict[str, Any]:
        return fallback_of(self.generation) | ({} if self._reused is None else self._reused.told)

    def _usage_so_far(self, delta: TextDelta) -> dict[str, Any] | None:
        if not self._body.continuous_usage:
            return None
        return usage_of(delta.usage, self.choice(delta.index).reasoning_tokens)

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices."""
        return sum(choice.reasoning_tokens for choice in self._choices.values())

    def _usage(self) -> dict[str, Any]:
        return usage_of(self.generation, self.reasoning_tokens)


def _reused(service: Service, body: ChatBody, request: TextRequest, caller: Caller) -> ReusedAnswer | None:
    """Durable streams are read again from what the engine said; token ids are asked for to see what it does."""
    cache, tenant = service.semantic_cache, caller.principal.tenant
    if cache is None or body.durable or body.return_token_ids or cache.mode_of(tenant) == "off":
        return None
    return ReusedAnswer(cache, request, tenant, caller.reply_fields)


def _grammar_param(body: ChatBody) -> str:
    """The field that the answer's grammar comes from."""
    if body.rules() is not None:
        return "tools"
    asked = asked_format(body)
    return "grammar" if asked is None else asked.param


def text_request(body: ChatBody, request_id: str) -> TextRequest:
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    begin = body.add_generation_prompt
    asked = asked_format(body)
    return TextRequest(
        request_id=request_id,
        messages=[plain(message) for message in body.messages],
        tools=body.offered_tools,
        add_generation_prompt=not body.continue_final_message if begin is None else begin,
        continue_final_message=bool(body.continue_final_message),
        chat_template_kwargs=body.chat_template_kwargs or {},
        reasoning_effort=body.reasoning_effort,
        add_special_tokens=body.add_special_tokens,
        options=body.options(
            max_tokens=limit,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
        ),
        grammar=None if asked is None else asked.grammar,
        calls=body.rules(),
        cache_salt=body.cache_salt or "",
        model=body.model,
        may_fall_back=body.fallback is not False,
        user=body.user_id,
        priority=body.priority,
        deadline_seconds=body.timeout_seconds,
    )
