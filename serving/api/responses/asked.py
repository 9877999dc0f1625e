"""The turn that a body asks for."""

from collections.abc import Sequence

from serving.api.caller import Caller
from serving.api.responses.body import ResponsesBody
from serving.api.responses.history import chat_messages
from serving.api.responses.tools import TurnTools, chosen_tool
from serving.orchestrator.tools.registry import ToolRegistry
from serving.orchestrator.turn_request import TurnBudgets, TurnRequest
from serving.sessions.conversations.records import Item

_DEFAULT = TurnBudgets()

# What clients of this protocol call what has another name below it.
THEIR_WORDS = {
    "deadline_seconds": "timeout_seconds",
    "grammar": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}


def turn_request(
    body: ResponsesBody, caller: Caller, items: Sequence[Item], tools: TurnTools, registry: ToolRegistry
) -> TurnRequest:
    """`items` are the whole conversation's, the input last. Raises RequestError."""
    choice = body.tool_choice or "auto"
    named = None if isinstance(choice, str) else chosen_tool(choice, registry)
    return TurnRequest(
        request_id=caller.request_id,
        messages=chat_messages(body.instructions, items),
        tools=tools.clients,
        server_tools=tools.here,
        tool_notes=tools.notes,
        tool_choice=choice if isinstance(choice, str) else "required",
        named_tool=named,
        parallel_calls=body.parallel_tool_calls is not False,
        options=body.options,
        grammar=body.grammar,
        answer_schema=body.schema,
        truncation=body.truncation or "disabled",
        budgets=TurnBudgets(
            calls=body.max_tool_calls or _DEFAULT.calls,
            completion_tokens=body.max_output_tokens,
            seconds=body.timeout_seconds,
        ),
        is_kept=body.is_stored,
        tenant=caller.principal.tenant,
        user=body.user_id,
        cache_salt=body.cache_salt or "",
        priority=body.priority,
        chat_template_kwargs=body.chat_template_kwargs or {},
        reasoning_effort=body.effort,
    )


def their_param(param: str, body: ResponsesBody) -> str:
    """`messages[2].content` is of the chat that was made of the input, whose items are not numbered so; a grammar is of
    the tools where no format is asked for."""
    if param == "grammar" and body.schema is None:
        return "tools"
    return "input" if param.startswith("messages") else THEIR_WORDS.get(param, param)
