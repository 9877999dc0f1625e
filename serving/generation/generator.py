"""Text in, text out, over an Engine that knows token ids only. Every protocol goes through here."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from serving.engine.client import Engine
from serving.engine.continuation import continued, end_reached, without_first_facts
from serving.engine.request import MAX_EOS_TOKEN_IDS, MAX_SEED, GenerateRequest, Priority, TokenEvent
from serving.errors import (
    CheckpointError,
    ContextLengthError,
    EngineUnavailableError,
    RequestError,
    UnsupportedError,
)
from serving.generation.answer_grammar import answer_grammar
from serving.generation.answers.answer_form import PLAIN, AnswerForm
from serving.generation.chat_format import ChatFormat
from serving.generation.checkpoint_text import SamplingDefaults
from serving.generation.choice import Choice, ChoiceStep
from serving.generation.detokenizer import decode
from serving.generation.request import PreparedPrompt, TextDelta, TextRequest
from serving.generation.stop_strings import StopStrings
from serving.generation.tokenizer import Tokenizer
from serving.generation.validation import (
    check_defaults,
    check_encoded,
    check_text,
    check_token_ids,
    count_of_ids,
    resolve_sampling,
)
from serving.observability.request_trace import UNTRACED, RequestTrace

ENCODE_IN_THREAD_ABOVE = 4096  # characters; encoding so many takes a few milliseconds


class Generator:
    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        chat_format: ChatFormat | None,
        model_name: str,
        max_model_len: int,
        defaults: SamplingDefaults | None = None,
    ) -> None:
        """`defaults` None: the checkpoint's own; `SamplingDefaults()`: neutral ones.

        Raises CheckpointError where one of them is out of bounds, or the tokens that end a text are.
        """
        self.engine = engine
        self.tokenizer = tokenizer
        self.chat_format = chat_format
        self.model_name = model_name
        self.max_model_len = max_model_len
        self.defaults = tokenizer.checkpoint.defaults if defaults is None else defaults
        check_defaults(self.defaults)
        _check_end_tokens(tokenizer)

    async def prepare(self, request: TextRequest, trace: RequestTrace = UNTRACED) -> PreparedPrompt:
        """Renders, encodes and checks. Raises RequestError that names what is wrong (ContextLengthError where prompt
        and output do not fit the window, UnsupportedError for chat without a chat template)."""
        text, ids = await self._prompt(request, trace)
        prompt_param = "prompt" if request.messages is None else "messages"
        if not ids:
            raise RequestError("the prompt has no tokens", param=prompt_param)
        form = self._answer_form(request, text)
        options = request.options
        sampling = resolve_sampling(
            options,
            defaults=self.defaults,
            tokenizer=self.tokenizer,
            prompt_tokens=len(ids),
            prompt_param=prompt_param,
            max_model_len=self.max_model_len,
        )
        return PreparedPrompt(
            request_id=request.request_id,
            prompt_token_ids=ids,
            prompt_text=text,
            sampling=sampling,
            n=options.n,
            stop=tuple(dict.fromkeys(options.stop)),
            include_stop_str_in_output=options.include_stop_str_in_output,
            skip_special_tokens=options.skip_special_tokens,
            grammar=answer_grammar(request, form, self.chat_format, self.tokenizer),
            answer=form,
            kept_special_tokens=_tag_tokens(form, self.tokenizer, with_tools=bool(request.tools)),
            cache_salt=request.cache_salt,
            adapter=request.adapter,
            priority=request.priority,
            tenant=request.tenant,
            tenant_weight=request.tenant_weight,
            deadline_seconds=request.deadline_seconds,
            max_tokens_stated=options.max_tokens is not None,
        )

    async def stream(self, prepared: PreparedPrompt) -> AsyncGenerator[TextDelta, None]:
        """The deltas of all choices as they come; each choice has one with a finish_reason, its last. Closing the
        iterator aborts every choice that has not finished.

        Raises what `Engine.generate` raises, and EngineError where the engine failed on a choice; the other choices
        end with it.
        """
        async with aclosing(self.steps(prepared)) as steps:
            async for step in steps:
                if step.delta is not None:
                    yield step.delta

    async def steps(
        self,
        prepared: PreparedPrompt,
        past: Sequence[tuple[int, TokenEvent]] = (),
        gate: "ChoiceGate | None" = None,
    ) -> AsyncGenerator[ChoiceStep, None]:
        """As `stream`, with the engine's events. After `past`, events of choices that an earlier call gave, what
        follows them: the tokens that would have come, and none of the past. Where there is a `gate`, each choice
        passes it; one that it ends is aborted, and the others go on."""
        choices = self.choices(prepared)
        told = [_Told() for _ in choices]
        for index, event in past:
            told[index].add(event, choices[index].feed(event))
        running = [index for index in range(prepared.n) if not told[index].ended]
        if len(running) == 1:
            (index,) = running
            async with aclosing(
                _gated(gate, index, self._choice(prepared, choices[index], told[index], index))
            ) as steps:
                async for step in steps:
                    yield step
            return
        # One slot: a choice waits with its next step until the reader took the last one.
        ready: asyncio.Queue[ChoiceStep | Exception] = asyncio.Queue(maxsize=1)
        tasks = [
            asyncio.create_task(
                _feed(ready, _gated(gate, index, self._choice(prepared, choices[index], told[index], index)))
            )
            for index in running
        ]
        try:
            open_choices = len(running)
            while open_choices:
                item = await ready.get()
                if isinstance(item, Exception):
                    raise item
                open_choices -= item.delta is not None and item.delta.finish_reason is not None
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def choices(self, prepared: PreparedPrompt) -> list[Choice]:
        """What turns the engine's events into deltas, one for each choice."""
        stops = StopStrings(prepared.stop)
        return [Choice(index, prepared, stops, self.tokenizer) for index in range(prepared.n)]

    async def tokenize(self, text: str, *, add_special_tokens: bool = True, param: str = "prompt") -> list[int]:
        """Raises RequestError for text that cannot be encoded, or has tokens that the model lacks, ContextLengthError
        where it cannot fit the window."""
        check_text(text, param)
        most = self.max_model_len * self.tokenizer.most_chars_per_token
        if len(text) > most:
            raise ContextLengthError(
                f"{param} has {len(text)} characters, but the model's window of {self.max_model_len} tokens holds "
                f"at most {most}",
                param=param,
            )
        if len(text) <= ENCODE_IN_THREAD_ABOVE:
            ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:
            ids = await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        check_encoded(ids, self.tokenizer, param)
        return ids

    async def encoded(self, request: TextRequest) -> tuple[int, ...]:
        """The prompt's tokens, as `prepare` has them. Raises RequestError."""
        return (await self._prompt(request, UNTRACED))[1]

    def detokenize(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Raises RequestError for an id outside the vocabulary."""
        ids = check_token_ids(token_ids, count_of_ids(self.tokenizer), "tokens")
        return decode(self.tokenizer, ids, skip_special_tokens=skip_special_tokens)

    async def render_chat(self, request: TextRequest) -> str:
        """The messages of a chat request as the model's prompt text."""
        if self.chat_format is None:
            raise UnsupportedError(
                f"the model {self.model_name} has no chat template, so it takes prompts but no messages",
                param="messages",
            )
        return await asyncio.to_thread(
            self.chat_format.render,
            request.messages or [],
            request.tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            variables=request.chat_template_kwargs,
            reasoning_effort=request.reasoning_effort,
        )

    def _answer_form(self, request: TextRequest, prompt: str | None) -> AnswerForm:
        if request.messages is None or self.chat_format is None:
            return PLAIN
        return self.chat_format.answer_form(prompt or "", with_tools=bool(request.tools))

    async def _prompt(self, request: TextRequest, trace: RequestTrace) -> tuple[str | None, tuple[int, ...]]:
        if (request.prompt is None) == (request.messages is None):
            raise RequestError("exactly one of prompt and messages must be given", param="messages")
        if isinstance(request.prompt, tuple):
            return None, check_token_ids(request.prompt, count_of_ids(self.tokenizer), "prompt")
        if request.prompt is None:
            with trace.stage("render"):
                text = await self.render_chat(request)
            param, special = "messages", False
        else:
            text, param, special = request.prompt, "prompt", True
        if request.add_special_tokens is not None:
            special = request.add_special_tokens
        with trace.stage("encode"):
            return text, tuple(await self.tokenize(text, add_special_tokens=special, param=param))

    async def _choice(
        self, prepared: PreparedPrompt, choice: Choice, told: "_Told", index: int
    ) -> AsyncGenerator[ChoiceStep, None]:
        request = _engine_request(prepared, index)
        if told.any:
            last = end_reached(request, told.token_ids, self.max_model_len)
            if last is not None:
                yield ChoiceStep(index, last, choice.feed(last))
                return
            request = continued(request, told.token_ids)
        async with aclosing(self.engine.generate(request)) as events:
            async for event in events:
                if told.any:
                    event = without_first_facts(event)
                delta = choice.feed(event)
                yield ChoiceStep(index, event, delta)
                if delta is not None and delta.finish_reason is not None:
                    return
        raise EngineUnavailableError("the engine's stream ended without saying why", code="engine_lost")


class ChoiceGate(Protocol):
    def __call__(self, index: int, steps: AsyncGenerator[ChoiceStep, None], /) -> AsyncGenerator[ChoiceStep, None]:
        """What of a choice's steps goes on, up to one with a finish_reason. Closing it closes `steps`."""
        ...


def _gated(
    gate: ChoiceGate | None, index: int, steps: AsyncGenerator[ChoiceStep, None]
) -> AsyncGenerator[ChoiceStep, None]:
    return steps if gate is None else gate(index, steps)


class _Told:
    """What an earlier run gave of one choice."""

    def __init__(self) -> None:
        self.any = False
        self.ended = False
        self.token_ids: list[int] = []

    def add(self, event: TokenEvent, delta: TextDelta | None) -> None:
        self.any = True
        self.token_ids += event.token_ids
        self.ended = delta is not None and delta.finish_reason is not None


def _check_end_tokens(tokenizer: Tokenizer) -> None:
    """Refused here, once, and not in each request: no client could do anything about them."""
    ends, size = tokenizer.eos_token_ids, tokenizer.vocab_size
    if len(ends) > MAX_EOS_TOKEN_IDS:
        raise CheckpointError(
            f"the checkpoint names {len(ends)} tokens that end a text (eos_token_id in generation_config.json and "
            f"config.json, and the tokenizer's own); at most {MAX_EOS_TOKEN_IDS} are supported",
            param="eos_token_id",
        )
    for owner, count in (("tokenizer", size), ("model", tokenizer.checkpoint.vocab_size or size)):
        outside = [token_id for token_id in ends if not 0 <= token_id < count]
        if outside:
            raise CheckpointError(
                f"the checkpoint's eos_token_id {outside[0]} is no token of its {owner}, whose ids are "
                f"0 .. {count - 1}: correct generation_config.json, or eos_token in tokenizer_config.json",
                param="eos_token_id",
            )


def _tag_tokens(form: AnswerForm, tokenizer: Tokenizer, *, with_tools: bool) -> frozenset[int]:
    """The special tokens that are an answer's tags: without them its parts could not be told from each other."""
    encoded = [tokenizer.encode(tag, add_special_tokens=False) for tag in form.tags(with_tools=with_tools)]
    return frozenset(ids[0] for ids in encoded if len(ids) == 1 and tokenizer.is_special(ids[0]))


async def _feed(ready: asyncio.Queue[ChoiceStep | Exception], choice: AsyncGenerator[ChoiceStep, None]) -> None:
    try:
        async with aclosing(choice) as steps:
            async for step in steps:
                await ready.put(step)
    except Exception as error:
        await ready.put(error)


def _engine_request(prepared: PreparedPrompt, index: int) -> GenerateRequest:
    """Choice 0 has the request's own id and seed, and alone reports the prompt's logprobs."""
    sampling = prepared.sampling
    if index:
        sampling = replace(sampling, seed=derived_seed(sampling.seed, index), prompt_logprobs=None)
    return GenerateRequest(
        request_id=prepared.engine_ids[index],
        prompt_token_ids=prepared.prompt_token_ids,
        sampling=sampling,
        cache_salt=prepared.cache_salt,
        adapter=prepared.adapter,
        grammar=prepared.grammar,
        priority=prepared.priority or Priority.STANDARD,
        tenant=prepared.tenant,
        tenant_weight=prepared.tenant_weight,
        deadline_seconds=prepared.deadline_seconds,
    )


def derived_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: `seed` itself for choice 0."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & MAX_SEED
