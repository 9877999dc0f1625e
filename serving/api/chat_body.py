"""What POST /v1/chat/completions reads, and the parts of it that POST /tokenize shares."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from serving.api.output_format import FORMAT_WORDS, asked_format
from serving.api.sampling_body import REFUSED_SAMPLING, SCHEDULING_WORDS, SamplingBody
from serving.api.tool_choice import CHOICE_WORDS, OfferedTool, ToolChoice, call_rules, refuse_form_beside_tools
from serving.api.typed_body import Refusal
from serving.errors import RequestError
from serving.generation.call_grammar import CallRules
from serving.settings.reasoning_switch import EFFORTS, Effort

MAX_MESSAGES = 4096
MAX_TOOLS = 128
RESERVED_VARIABLES = ("add_generation_prompt", "continue_final_message", "messages", "self", "tools")

REFUSED_TEMPLATE = {
    "chat_template": Refusal("the server's own template is used: a client's could run without bounds"),
    "documents": Refusal("put the documents into a message"),
    "mm_processor_kwargs": Refusal("content is text only"),
    "media_io_kwargs": Refusal("content is text only"),
}

REFUSED_CHAT = {
    **REFUSED_SAMPLING,
    **REFUSED_TEMPLATE,
    "audio": Refusal("output is text only"),
    "echo": Refusal("use continue_final_message to continue a message", (False,)),
    "function_call": Refusal("it is deprecated; use tool_choice"),
    "functions": Refusal("it is deprecated; use tools"),
    "modalities": Refusal("output is text only", (["text"],)),
    "moderation": Refusal("what is judged is the deployment's choice"),
    "prediction": Refusal("predicted outputs are not offered"),
    "prompt_cache_options": Refusal("the prefix cache has no options per request"),
    "prompt_cache_retention": Refusal("the prefix cache has no options per request"),
    "thinking_token_budget": Refusal("reasoning is not limited apart from max_completion_tokens"),
    "verbosity": Refusal("ask for it in a message"),
    "web_search_options": Refusal("there is no web search"),
}


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag="text"):
    text: str


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str  # JSON in a string, as the model wrote it
    parsed_arguments: Any = None  # what the SDK read in them


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None  # what a streamed delta has, where a client sends its pieces back


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="role"):
    name: str | None = None


class SystemMessage(Message, kw_only=True, tag="system"):
    content: str | list[TextPart]


class DeveloperMessage(Message, kw_only=True, tag="developer"):
    content: str | list[TextPart]


class UserMessage(Message, kw_only=True, tag="user"):
    content: str | list[TextPart]


class AssistantMessage(Message, kw_only=True, tag="assistant"):
    """As an answer comes back from the SDK: its null and empty fields say nothing."""

    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    parsed: Any = None  # what the SDK read in the content


class ToolMessage(Message, kw_only=True, tag="tool"):
    content: str | list[TextPart]
    tool_call_id: str


AnyMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    function: Function
    type: Literal["function"]


Messages = Annotated[list[AnyMessage], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
Tools = Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)]

CHAT_WORDS = {
    "messages[].role": ("system", "developer", "user", "assistant", "tool"),
    "messages[].content[].type": ("text",),
    "messages[].tool_calls[].type": ("function",),
    "tools[].type": ("function",),
    "reasoning_effort": EFFORTS,
}


class ChatBody(SamplingBody, kw_only=True):
    refused: ClassVar = REFUSED_CHAT
    words: ClassVar = CHAT_WORDS | CHOICE_WORDS | FORMAT_WORDS | SCHEDULING_WORDS

    messages: Messages
    logprobs: bool | None = None
    reasoning_effort: Effort | None = None  # None: as the chat template has it
    include_reasoning: bool | None = None  # False: what the model thinks before it answers is left out
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check_together(self) -> None:
        super().check_together()
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise RequestError(
                "max_tokens and max_completion_tokens are two names of one limit; send one of them",
                param="max_completion_tokens",
                code="invalid_value",
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other: one goes on with the last "
                "message, the other begins a new one",
                param="continue_final_message",
                code="invalid_value",
            )
        check_template_variables(self.chat_template_kwargs)
        self.rules()

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """As the chat template sees them; None where the model may call none."""
        if not self.tools or self.tool_choice == "none":
            return None
        return offered(self.tools)

    def rules(self) -> CallRules | None:
        """Which calls the answer must or may make; None where it is free. Raises RequestError where fields that say so
        exclude each other."""
        asked = asked_format(self)
        tools = [OfferedTool(t.function.name, t.function.parameters, t.function.strict) for t in self.tools or ()]
        content = None if asked is None else asked.schema
        rules = call_rules(tools, self.tool_choice, parallel=self.parallel_tool_calls, content=content)
        if asked is not None and asked.schema is None and self.offered_tools is not None:
            refuse_form_beside_tools(asked.param)
        return rules


def offered(tools: list[Tool]) -> list[dict[str, Any]]:
    """Tools as the chat template sees them: without `strict`, which is for the server."""
    shown = [plain(tool) for tool in tools]
    for tool in shown:
        tool["function"].pop("strict", None)
    return shown


def check_template_variables(variables: dict[str, Any] | None) -> None:
    """Raises RequestError where a variable would take the place of what has a field of its own."""
    for name in RESERVED_VARIABLES:
        if name in (variables or {}):
            raise RequestError(
                f"chat_template_kwargs must not hold {name}: it has a field of its own",
                param=f"chat_template_kwargs.{name}",
                code="invalid_value",
            )


def plain(struct: msgspec.Struct) -> dict[str, Any]:
    """A message or a tool as the chat template reads it: what the client left out or set to null is not
    there, nor what its library read in what is."""
    return _without_nulls(msgspec.to_builtins(struct))


_OF_THE_SDK = ("parsed", "parsed_arguments")


def _without_nulls(value: Any) -> Any:
    """Drops null and empty members of the API's own objects; what stands in a tool's schema stays."""
    if isinstance(value, dict):
        return {
            key: member if key == "parameters" else _without_nulls(member)
            for key, member in value.items()
            if member is not None and member != [] and key not in _OF_THE_SDK
        }
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
