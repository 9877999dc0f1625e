"""The answer to POST /v1/completions. Choices are numbered prompt by prompt: prompt p's choice i of n is p * n + i."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from serving.api.caller import Caller
from serving.api.chunks import Chunks, encode
from serving.api.completion_body import DEFAULT_MAX_TOKENS, CompletionBody, Prompt
from serving.api.followed_generation import FollowedGeneration
from serving.api.generation import Generation
from serving.api.output_format import asked_format
from serving.api.reply_parts import Logprobs, fallback_of, flagged, likeliest, prompt_logprobs, text_logprobs, usage_of
from serving.api.service import Service
from serving.generation.detokenizer import token_starts
from serving.generation.request import TextDelta, TextLogprobs, TextRequest


class CompletionReply:
    """One request's answer, streamed or whole."""

    def __init__(
        self,
        service: Service,
        body: CompletionBody,
        caller: Caller,
        *,
        source: FollowedGeneration | None = None,
        created: int | None = None,
    ) -> None:
        """`source` and `created` are those of a reply that began earlier. Raises RequestError for prompts of mixed
        kinds."""
        self._body = body
        request_id = caller.request_id
        asked = asked_format(body)
        self.generation = source or Generation(
            service,
            text_requests(body, request_id),
            caller,
            stream=bool(body.stream),
            client_names={} if asked is None else {"grammar": asked.param},
        )
        self._id = f"cmpl-{request_id}"
        self.created = int(service.now()) if created is None else created
        self._weights: str | None = None

    async def whole(self) -> bytes:
        texts: dict[int, _TextChoice] = {}
        prompts: dict[int, Logprobs] = {}
        async with aclosing(self.generation.deltas()) as deltas:
            async for prompt, delta in deltas:
                self._weights = delta.weights
                texts.setdefault(self._index(prompt, delta), _TextChoice()).keep(delta)
                if delta.prompt_logprobs is not None:
                    prompts[prompt] = delta.prompt_logprobs
        reply = {
            "id": self._id,
            "object": "text_completion",
            "created": self.created,
            "model": self.generation.model,
            "choices": [self._choice(index, texts[index], prompts) for index in sorted(texts)],
            "usage": self._usage(),
            "system_fingerprint": self._weights,
            **fallback_of(self.generation),
        }
        return encode(reply)

    async def events(self) -> AsyncGenerator[bytes, None]:
        chunks: Chunks | None = None
        begun: set[int] = set()
        async with aclosing(self.generation.deltas()) as deltas:
            async for prompt, delta in deltas:
                chunks = chunks or self._begun()
                chunks.sign(delta.weights)
                yield self._chunk(chunks, prompt, delta, begun)
        if self._body.include_usage and chunks is not None:
            yield chunks.usage(self._usage())

    def _begun(self) -> Chunks:
        """Once the model is known that answers."""
        return Chunks(
            "text_completion",
            self._id,
            self.created,
            self.generation.model,
            include_usage=self._body.include_usage,
            text_field='"text":',
        )

    def _chunk(self, chunks: Chunks, prompt: int, delta: TextDelta, begun: set[int]) -> bytes:
        body = self._body
        index = self._index(prompt, delta)
        first = index not in begun
        begun.add(index)
        echo = self._prompt_text(prompt) if first and body.echo else ""
        text = echo + delta.text
        more = fallback_of(self.generation) if first else {}
        rich = body.logprobs is not None or body.return_token_ids or body.continuous_usage or more
        if not rich and delta.finish_reason is None:
            return chunks.text(index, text)
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None}
        if body.logprobs is not None:
            choice["logprobs"] = text_logprobs(delta.logprobs, [entry.start for entry in delta.logprobs])
        choice["finish_reason"] = delta.finish_reason
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
            choice |= flagged(delta.flags)
        if body.return_token_ids:
            choice["token_ids"] = delta.token_ids
            if first:
                choice["prompt_token_ids"] = self.generation.prepared[prompt].prompt_token_ids
        if not body.continuous_usage:
            return chunks.choice(choice, None, **more)
        so_far = delta.usage
        return chunks.choice(choice, usage_of(so_far), **more)

    def _choice(self, index: int, found: "_TextChoice", prompts: dict[int, Logprobs]) -> dict[str, Any]:
        body = self._body
        prompt = index // (body.n or 1)
        prepared = self.generation.prepared[prompt]
        echo = self._prompt_text(prompt) if body.echo else ""
        choice: dict[str, Any] = {
            "index": index,
            "text": echo + "".join(found.text),
            "logprobs": None,
            "finish_reason": found.last.finish_reason,
            "stop_reason": found.last.stop_reason,
            **flagged(found.last.flags),
        }
        if body.logprobs is not None:
            before = likeliest(prompts.get(prompt, ()), body.logprobs) if body.echo else ()
            offsets = self._prompt_starts(prompt, echo) if before else []
            offsets += [len(echo) + entry.start for entry in found.logprobs]
            choice["logprobs"] = text_logprobs((*before, *found.logprobs), offsets, self._first_token(prompt))
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(likeliest(prompts.get(prompt, ()), body.prompt_logprobs))
        if body.return_token_ids:
            choice["token_ids"] = found.token_ids
            choice["prompt_token_ids"] = prepared.prompt_token_ids
        return choice

    def _index(self, prompt: int, delta: TextDelta) -> int:
        return prompt * self.generation.prepared[prompt].n + delta.index

    def _prompt_text(self, prompt: int) -> str:
        prepared = self.generation.prepared[prompt]
        if prepared.prompt_text is not None:
            return prepared.prompt_text
        return self.generation.generator.detokenize(
            list(prepared.prompt_token_ids), skip_special_tokens=prepared.skip_special_tokens
        )

    def _prompt_starts(self, prompt: int, text: str) -> list[int]:
        token_ids = self.generation.prepared[prompt].prompt_token_ids
        return token_starts(self.generation.generator.tokenizer, token_ids, text)

    def _first_token(self, prompt: int) -> str:
        return self.generation.generator.detokenize([self.generation.prepared[prompt].prompt_token_ids[0]])

    def _usage(self) -> dict[str, Any]:
        generation = self.generation
        return usage_of(generation)


class _TextChoice:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.logprobs: list[TextLogprobs] = []
        self.token_ids: list[int] = []
        self.last: TextDelta

    def keep(self, delta: TextDelta) -> None:
        self.text.append(delta.text)
        self.logprobs += delta.logprobs
        self.token_ids += delta.token_ids
        self.last = delta


def text_requests(body: CompletionBody, request_id: str) -> list[TextRequest]:
    """One a prompt."""
    prompts = body.prompts
    return [
        text_request(body, prompt, request_id if len(prompts) == 1 else f"{request_id}-p{i}")
        for i, prompt in enumerate(prompts)
    ]


def text_request(body: CompletionBody, prompt: Prompt, request_id: str) -> TextRequest:
    asked = asked_format(body)
    return TextRequest(
        request_id=request_id,
        prompt=prompt,
        add_special_tokens=body.add_special_tokens,
        options=replace(
            body.options(
                max_tokens=body.max_tokens,
                logprobs=body.logprobs,
                prompt_logprobs=_prompt_logprobs(body),
            ),
            default_max_tokens=DEFAULT_MAX_TOKENS,
        ),
        grammar=None if asked is None else asked.grammar,
        cache_salt=body.cache_salt or "",
        model=body.model,
        may_fall_back=body.fallback is not False,
        user=body.user_id,
        priority=body.priority,
        deadline_seconds=body.timeout_seconds,
    )


def _prompt_logprobs(body: CompletionBody) -> int | None:
    """As many as the greedier of the two shapes that show them, each of which is then cut to its own count."""
    echoed = body.logprobs if body.echo else None
    if echoed is None or body.prompt_logprobs is None:
        return echoed if body.prompt_logprobs is None else body.prompt_logprobs
    negative = body.prompt_logprobs < 0  # left as it is, to be refused
    return body.prompt_logprobs if negative else max(echoed, body.prompt_logprobs)
