"""The chat format of the demo model: one jinja template that ships, and the same format as parts with a loss mask."""

import json
from dataclasses import dataclass

import jinja2

from scripts.demo.dialogue import Conversation

BOS = "<s>"
END = "<|end|>"
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
MARKERS = [*ROLES.values(), END, CALL_OPEN, CALL_CLOSE]
TOOLS_HEADING = "Tools:"

TEMPLATE = (
    "{{- bos_token }}"
    "{%- set has_system = messages and messages[0]['role'] == 'system' %}"
    "{%- set system = messages[0]['content'] if has_system else none %}"
    "{%- if system is not none or tools %}{{- '<|system|>' + (system or '') }}"
    "{%- if tools %}{{- ('\\n\\n' if system else '') + 'Tools:' }}"
    "{%- for tool in tools %}{%- set function = tool['function'] if 'function' in tool else tool %}"
    "{{- '\\n{\"name\": ' + (function['name'] | tojson)"
    " + ', \"description\": ' + ((function['description'] or '') | tojson)"
    " + ', \"parameters\": ' + ((function['parameters'] or {}) | tojson) + '}' }}"
    "{%- endfor %}{%- endif %}{{- '<|end|>' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (loop.first and message['role'] == 'system') %}"
    "{{- '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] %}"
    "{%- set function = call['function'] if 'function' in call else call %}"
    "{%- set arguments = function['arguments'] %}"
    "{{- '<tool_call>{\"name\": ' + (function['name'] | tojson) + ', \"arguments\": '"
    " + (arguments if arguments is string else (arguments | tojson)) + '}</tool_call>' }}"
    "{%- endfor %}{{- '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


@dataclass(frozen=True)
class Part:
    """A run of text that is either learned (what the assistant says, with its end) or only read."""

    text: str
    learned: bool


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def render(
    messages: list[dict[str, object]], tools: list[dict[str, object]], add_generation_prompt: bool = False
) -> str:
    """The template's own rendering, with tojson as the model hubs have it: key order kept, nothing escaped."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["tojson"] = _json
    template = environment.from_string(TEMPLATE)
    return template.render(messages=messages, tools=tools, bos_token=BOS, add_generation_prompt=add_generation_prompt)


def _call_text(call: dict[str, dict[str, str]]) -> str:
    function = call["function"]
    return f'{CALL_OPEN}{{"name": {_json(function["name"])}, "arguments": {function["arguments"]}}}{CALL_CLOSE}'


def _tool_text(tool: dict[str, dict[str, object]]) -> str:
    function = tool["function"]
    fields = [f'"{key}": {_json(function[key])}' for key in ("name", "description", "parameters")]
    return "\n{" + ", ".join(fields) + "}"


def parts(conversation: Conversation) -> list[Part]:
    """The same text as `render`, cut where learning starts and stops; BOS stands first by itself."""
    messages = conversation.messages
    has_system = bool(messages) and messages[0]["role"] == "system"
    found: list[Part] = []
    if has_system or conversation.tools:
        head = str(messages[0]["content"]) if has_system else ""
        if conversation.tools:
            listed = "".join(_tool_text(tool) for tool in conversation.tools)  # pyright: ignore[reportArgumentType]
            head += ("\n\n" if head else "") + TOOLS_HEADING + listed
        found.append(Part(f"{ROLES['system']}{head}{END}", False))
    for message in messages[int(has_system) :]:
        role = str(message["role"])
        text = str(message["content"] or "")
        calls = message.get("tool_calls") or []
        text += "".join(_call_text(call) for call in calls)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
        if role == "assistant":
            found += [Part(ROLES[role], False), Part(f"{text}{END}", True)]
        else:
            found.append(Part(f"{ROLES[role]}{text}{END}", False))
    return found
