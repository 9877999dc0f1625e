"""What POST /v1/messages and /v1/messages/count_tokens read, and the chat request that it is.

The rules of a chat (tools, forms, template variables) are ChatBody's: a body becomes one, and is checked there.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from serving.api.chat_body import (
    MAX_MESSAGES,
    MAX_TOOLS,
    AnyMessage,
    AssistantMessage,
    ChatBody,
    Function,
    FunctionCall,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from serving.api.messages.error_shape import THREAD
from serving.api.output_format import JsonSchemaFormat, NamedSchema
from serving.api.sampling_body import MAX_SALT_CHARS, SCHEDULING_WORDS
from serving.api.tool_choice import FunctionName, NamedChoice, ToolChoice
from serving.api.typed_body import Body, Refusal, without_nulls
from serving.engine.request import Priority
from serving.errors import RequestError
from serving.settings.reasoning_switch import Effort

REFUSED_MESSAGES = {
    "container": Refusal("no code runs in the server"),
    "context_management": Refusal("messages are read as they are sent"),
    "durable": Refusal("streams that outlive their clients are those of /v1/chat/completions", (False,)),
    "inference_geo": Refusal("the model runs where this server is"),
    "mcp_servers": Refusal("the server calls no tools itself"),
    "service_tier": Refusal("there is one tier", ("auto", "standard_only")),
    "speed": Refusal("there is one speed", ("standard",)),
    THREAD: Refusal("messages are kept by who sends them; /v1/responses keeps conversations"),
}


class CacheControl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A hint that is not needed: every prefix is cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    cache_control: CacheControl | None = None


class TextBlock(Block, kw_only=True, tag="text"):
    text: str
    citations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None  # as an answer comes back from the SDK


class ToolUseBlock(Block, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ThinkingBlock(Block, kw_only=True, tag="thinking"):
    """What the model thought, as an answer comes back from the SDK. Nothing is signed here."""

    thinking: str
    signature: str | None = None


class ToolResultBlock(Block, kw_only=True, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class UserTurn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="user"):
    content: str | list[TextBlock | ToolResultBlock]


class AssistantTurn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock]


class OfferedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class Choice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: OutputFormat | None = None


class ThinkingEnabled(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="enabled"):
    budget_tokens: Annotated[int, msgspec.Meta(ge=1024)]  # a measure of the effort, as it is Anthropic's; no limit

    @property
    def effort(self) -> Effort:
        for below, effort in _BUDGETS:
            if self.budget_tokens < below:
                return effort
        return "high"


class ThinkingDisabled(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    effort: ClassVar[Effort] = "none"


class Labels(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    user_id: str | None = None


_BLOCKS = {
    "messages[].role": ("user", "assistant"),
    "messages[].content[].type": ("text", "thinking", "tool_use", "tool_result"),
    "messages[].content[].content[].type": ("text",),
    "messages[].content[].cache_control.type": ("ephemeral",),
    "messages[].content[].cache_control.ttl": ("5m", "1h"),
    "system[].type": ("text",),
    "system[].cache_control.type": ("ephemeral",),
    "tools[].type": ("custom",),
    "tools[].cache_control.type": ("ephemeral",),
    "tool_choice.type": ("auto", "any", "tool", "none"),
    "output_config.format.type": ("json_schema",),
    "thinking.type": ("enabled", "disabled"),
}
_BUDGETS: tuple[tuple[int, Effort], ...] = ((4096, "low"), (16384, "medium"))  # of tokens, below which it is so much


class PromptBody(Body, kw_only=True):
    """What makes the prompt: all that counting needs. `cache_control` is accepted and changes nothing."""

    refused: ClassVar = REFUSED_MESSAGES
    words: ClassVar = _BLOCKS | SCHEDULING_WORDS

    model: str | None = None  # None: the one that is served
    messages: Annotated[list[UserTurn | AssistantTurn], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[OfferedFunction], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    output_config: OutputConfig | None = None
    thinking: ThinkingEnabled | ThinkingDisabled | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: CacheControl | None = None

    @classmethod
    def prepared(cls, table: dict[str, Any]) -> dict[str, Any]:
        messages = table.get("messages")
        return {**table, "messages": _plain(messages)} if isinstance(messages, list) else table

    def chat(self) -> ChatBody:
        """Raises RequestError for what no type can say."""
        body = self._chat()
        try:
            body.check_together()
        except RequestError as error:
            raise in_their_words(error) from None
        return body

    def _chat(self) -> ChatBody:
        choice, output = self.tool_choice, self.output_config and self.output_config.format
        return ChatBody(
            messages=self._messages(),
            continue_final_message=isinstance(self.messages[-1], AssistantTurn),
            tools=[_tool(tool) for tool in self.tools] if self.tools else None,
            tool_choice=None if choice is None else _tool_choice(choice),
            parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
            response_format=None
            if output is None
            else JsonSchemaFormat(json_schema=NamedSchema(name="output", schema=output.schema)),
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=None if self.thinking is None else self.thinking.effort,
        )

    def _messages(self) -> list[AnyMessage]:
        found: list[AnyMessage] = [] if self.system is None else [SystemMessage(content=_content(self.system))]
        for number, turn in enumerate(self.messages):
            if isinstance(turn, UserTurn):
                found += _user_messages(turn)
            else:
                last = number == len(self.messages) - 1
                found.append(_assistant_message(turn, f"messages[{number}].content", last=last))
        return found


class MessagesBody(PromptBody, kw_only=True):
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Labels | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    priority: Priority | None = None
    fallback: bool | None = None  # false: no other model may answer in place of this one

    def _chat(self) -> ChatBody:
        if isinstance(self.thinking, ThinkingEnabled) and self.thinking.budget_tokens >= self.max_tokens:
            raise RequestError(
                f"thinking.budget_tokens ({self.thinking.budget_tokens}) must be below max_tokens ({self.max_tokens}): "
                "what is thought is part of the answer's tokens",
                param="thinking.budget_tokens",
                code="invalid_value",
            )
        return msgspec.structs.replace(
            super()._chat(),
            max_tokens=self.max_tokens,
            stream=self.stream,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            cache_salt=self.cache_salt,
            priority=self.priority,
            fallback=self.fallback,
        )


class CountTokensBody(PromptBody, kw_only=True):
    pass


THEIR_WORDS = {
    "stop": "stop_sequences",
    "grammar": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "thinking",
    "tool_choice.function.name": "tool_choice.name",
}


def in_their_words(error: RequestError) -> RequestError:
    """An error about a chat's field, as one about the field that the client sent."""
    name = THEIR_WORDS.get(error.param or "")
    return error if name is None else error.renamed(name)


def _plain(values: list[Any]) -> list[Any]:
    """Messages, and the blocks within them, without members that are null."""
    plain = [without_nulls(value) for value in values]
    for value in plain:
        if isinstance(value, dict) and isinstance(value.get("content"), list):
            value["content"] = _plain(value["content"])
    return plain


def _content(content: str | list[TextBlock]) -> str | list[TextPart]:
    return content if isinstance(content, str) else [TextPart(text=block.text) for block in content]


def _user_messages(turn: UserTurn) -> list[AnyMessage]:
    """A chat has a message of its own for each result; runs of text stay one."""
    if isinstance(turn.content, str):
        return [UserMessage(content=turn.content)]
    found: list[AnyMessage] = []
    texts: list[TextPart] = []
    for block in turn.content:
        if isinstance(block, TextBlock):
            texts.append(TextPart(text=block.text))
            continue
        if texts:
            found.append(UserMessage(content=texts))
            texts = []
        found.append(ToolMessage(tool_call_id=block.tool_use_id, content=_result(block)))
    if texts or not found:
        found.append(UserMessage(content=texts))
    return found


def _result(block: ToolResultBlock) -> str | list[TextPart]:
    """Chat templates have no flag for a failed call, so the model reads it."""
    content = _content(block.content or "")
    if not block.is_error:
        return content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    return f"Error: {text}"


def _assistant_message(turn: AssistantTurn, where: str, *, last: bool) -> AssistantMessage:
    if isinstance(turn.content, str):
        return AssistantMessage(content=turn.content)
    calls = [block for block in turn.content if isinstance(block, ToolUseBlock)]
    texts = [TextPart(text=block.text) for block in turn.content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    if last and (calls or not texts):
        raise RequestError(
            f"{where} must be text where the assistant's message is the last: that text is continued; after a "
            "tool_use the next message is a user's, with its tool_result",
            param=where,
            code="invalid_value",
        )
    return AssistantMessage(
        content=texts or None,
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=[_call(call) for call in calls] or None,
    )


def _call(block: ToolUseBlock) -> ToolCall:
    arguments = msgspec.json.encode(block.input).decode()
    return ToolCall(id=block.id, function=FunctionCall(name=block.name, arguments=arguments))


def _tool(tool: OfferedFunction) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
    return Tool(type="function", function=function)


def _tool_choice(choice: Choice) -> ToolChoice:
    if (choice.type == "tool") != (choice.name is not None):
        raise RequestError(
            'tool_choice.name is given with tool_choice.type "tool", and only there',
            param="tool_choice.name",
            code="missing_required_parameter" if choice.name is None else "invalid_value",
        )
    match choice.type:
        case "tool":
            return NamedChoice(type="function", function=FunctionName(name=choice.name or ""))
        case "any":
            return "required"
        case "none":
            return "none"
        case "auto":
            return "auto"
