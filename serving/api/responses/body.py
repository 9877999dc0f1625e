"""What POST /v1/responses reads."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from serving.api.chat_body import MAX_TOOLS, check_template_variables
from serving.api.metadata import Metadata
from serving.api.output_format import ANY_OBJECT
from serving.api.responses.items import Items, item_words, plain_items
from serving.api.responses.tools import TOOL_WORDS, AnyTool, ToolChoice, with_builtin_choice, with_builtins
from serving.api.sampling_body import MAX_SALT_CHARS, MAX_TIMEOUT_SECONDS, SCHEDULING_WORDS
from serving.api.typed_body import Body, Refusal
from serving.engine.request import GrammarKind, GrammarSpec, Priority
from serving.errors import RequestError, UnsupportedError
from serving.generation.request import GenerationOptions
from serving.settings.reasoning_switch import EFFORTS, Effort

MAX_ID_CHARS = 128
MAX_USER_CHARS = 256

Include = Literal["file_search_call.results", "code_interpreter_call.outputs"]
INCLUDES: tuple[Include, ...] = ("file_search_call.results", "code_interpreter_call.outputs")
UserName = Annotated[str, msgspec.Meta(max_length=MAX_USER_CHARS, pattern="^[^\\x00]*$")]  # Postgres keeps no NUL
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]

REFUSED_RESPONSES = {
    "access_programs": Refusal("there are none"),
    "context_management": Refusal('what does not fit is left out by truncation "auto"'),
    "image": Refusal("input is text only"),
    "max_completion_tokens": Refusal("here it is max_output_tokens"),
    "max_tokens": Refusal("here it is max_output_tokens"),
    "messages": Refusal("here they are the input"),
    "moderation": Refusal("what is judged is the deployment's choice"),
    "prompt": Refusal("there are no prompt templates: send instructions"),
    "prompt_cache_options": Refusal("the prefix cache has no options per request"),
    "prompt_cache_retention": Refusal("the prefix cache has no options per request"),
    "response_format": Refusal("here it is text.format"),
    "service_tier": Refusal("there is one tier", ("auto", "default")),
    "stop": Refusal("this protocol has no stop strings: use /v1/chat/completions"),
    "top_logprobs": Refusal("this protocol gives no log-probabilities: use /v1/chat/completions", (0,)),
}


class ConversationRef(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: Id


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class PlainFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    pass


class ObjectFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    pass


class SchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None  # it is followed either way


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: PlainFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None  # which is OpenAI's default; for another ask in the instructions


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Effort | None = None  # None: as the chat template has it
    summary: Literal["auto"] | None = None  # auto is none: reasoning comes as it is
    generate_summary: Literal["auto"] | None = None  # its older name


class ResponsesBody(Body, kw_only=True):
    """`prompt_cache_key` is a label: every prefix is cached."""

    refused: ClassVar = REFUSED_RESPONSES
    words: ClassVar = {
        "text.verbosity": ("medium",),
        **item_words("input"),
        **TOOL_WORDS,
        **SCHEDULING_WORDS,
        "include[]": INCLUDES,
        "truncation": ("auto", "disabled"),
        "reasoning.effort": EFFORTS,
        "reasoning.summary": ("auto",),
        "reasoning.generate_summary": ("auto",),
        "text.format.type": ("text", "json_object", "json_schema"),
    }

    model: str | None = None  # None: the one that is served
    input: str | Items
    instructions: str | None = None
    previous_response_id: Id | None = None
    conversation: Id | ConversationRef | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    tools: Annotated[list[AnyTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1)] | None = None
    include: list[Include] | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None

    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None

    top_k: int | None = None
    seed: int | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    priority: Priority | None = None  # None: the key's
    fallback: bool | None = None  # false: no other model may answer in place of this one
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_SECONDS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    metadata: Metadata | None = None
    user: UserName | None = None
    safety_identifier: UserName | None = None
    prompt_cache_key: str | None = None

    @classmethod
    def prepared(cls, table: dict[str, Any]) -> dict[str, Any]:
        made = dict(table)
        if "input" in made:
            made["input"] = plain_items(made["input"])
        if "tools" in made:
            made["tools"] = with_builtins(made["tools"])
        if "tool_choice" in made:
            made["tool_choice"] = with_builtin_choice(made["tool_choice"])
        return made

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def user_id(self) -> str:
        return self.safety_identifier or self.user or ""

    @property
    def effort(self) -> Effort | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def options(self) -> GenerationOptions:
        return GenerationOptions(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_output_tokens,
        )

    @property
    def schema(self) -> dict[str, Any] | None:
        """That the answer has to follow."""
        match self.text and self.text.format:
            case ObjectFormat():
                return ANY_OBJECT
            case SchemaFormat(schema=schema):
                return schema
        return None

    @property
    def grammar(self) -> GrammarSpec | None:
        schema = self.schema
        text = None if schema is None else msgspec.json.encode(schema).decode()
        return None if text is None else GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=text)

    def check_together(self) -> None:
        """What a type cannot say. Raises RequestError."""
        if self.previous_response_id is not None and self.conversation is not None:
            raise _excludes("previous_response_id", "conversation: it knows its last response")
        if not self.is_stored and self.conversation is not None:
            raise _excludes("store", "conversation: what is said in it is kept; leave store out, or send true")
        if not self.is_stored and self.background:
            raise _excludes("store", "background: a response that is asked for later is kept; leave store out")
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", param="stream_options", code="invalid_value")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise UnsupportedError(
                "stream_options.include_obfuscation is not supported: events are not padded; send false",
                param="stream_options.include_obfuscation",
            )
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise RequestError("tool_choice needs tools", param="tool_choice", code="invalid_value")
        if self.safety_identifier and self.user and self.safety_identifier != self.user:
            raise _excludes("user", "another safety_identifier: they are two names of one thing")
        check_template_variables(self.chat_template_kwargs)


def _excludes(param: str, other: str) -> RequestError:
    return RequestError(f"{param} cannot be sent with {other}", param=param, code="invalid_value")
