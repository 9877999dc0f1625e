"""What a request would take, known before it is submitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serving.engine.embedding import EmbedRequest
from serving.engine.request import Priority
from serving.generation.request import PreparedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One client request: of one prompt or of several, each with its choices."""

    prompt_of: Mapping[str, str]  # the engine's requests that it will make, which the guard lets pass: whose prompt
    prompt_tokens: int  # of all prompts
    output_tokens: int  # at most, of all choices
    choices: int  # of all prompts
    longest_prompt: int  # tokens
    longest_stream: int  # tokens, prompt and output, of one choice
    longest_output: int  # tokens, of one choice
    output_was_stated: bool  # the client named max_tokens
    model: str
    stream: bool
    priority: Priority | None = None  # as the client wishes; None: the principal's
    generates: bool = True  # False: it takes no row of the engine's batch, and waits in another queue
    continues: bool = False  # admitted before, and lost with an API process: capacity does not refuse it
    base: str = ""  # the model without its adapter, whose engine's queue it joins; "": the first

    @classmethod
    def of(
        cls,
        prepared: Sequence[PreparedPrompt],
        *,
        model: str,
        stream: bool,
        priority: Priority | None = None,
        continues: bool = False,
        base: str = "",
    ) -> "Ask":
        """`prepared` by Generator.prepare, so that tokens are counted and not guessed."""
        return cls(
            prompt_of={name: prompt.request_id for prompt in prepared for name in prompt.engine_ids},
            prompt_tokens=sum(prompt.prompt_tokens for prompt in prepared),
            output_tokens=sum(prompt.n * prompt.sampling.max_tokens for prompt in prepared),
            choices=sum(prompt.n for prompt in prepared),
            longest_prompt=max(prompt.prompt_tokens for prompt in prepared),
            longest_stream=max(prompt.prompt_tokens + prompt.sampling.max_tokens for prompt in prepared),
            longest_output=max(prompt.sampling.max_tokens for prompt in prepared),
            output_was_stated=prepared[0].max_tokens_stated,
            model=model,
            stream=stream,
            priority=priority,
            continues=continues,
            base=base,
        )

    @classmethod
    def of_texts(cls, request: EmbedRequest, *, model: str) -> "Ask":
        """Texts to embed: of the batch class, which goes first where there is too little room."""
        longest = max(map(len, request.texts))
        return cls(
            prompt_of={request.request_id: request.request_id},
            prompt_tokens=request.tokens,
            output_tokens=0,
            choices=0,
            longest_prompt=longest,
            longest_stream=longest,
            longest_output=0,
            output_was_stated=True,
            model=model,
            stream=False,
            priority=Priority.BATCH,
            generates=False,
        )
