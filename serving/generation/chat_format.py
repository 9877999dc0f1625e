"""Messages to the model's prompt text, by the checkpoint's Jinja chat template."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.errors import CheckpointError, ConfigError, RequestError, UnsupportedError
from serving.generation.answers.answer_form import AUTO, AnswerForm, begins_after, form_of
from serving.generation.checkpoint_text import CheckpointText
from serving.generation.reasoning_switch import switches_of
from serving.generation.template_process import TemplateError, TemplateProcess
from serving.settings.reasoning_switch import EFFORTS, Effort, ReasoningSwitchConfig

MAX_MESSAGES = 4096
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_TELLS_NO_CONTENT = re.compile(r"""\bcontent['"\]\s]*\bis\s+(not\s+)?[Nn]one\b""")


class ChatFormat:
    """Renders what `transformers`' apply_chat_template renders, with these differences:

    - a list of content parts becomes one text, its parts joined by newlines (vLLM's rule for templates that want text);
    - `arguments` of tool calls may come as JSON text, as OpenAI's clients send them, and become an object; or, where
      the template fails on that, the text again;
    - content that is missing is empty, and none beside tool calls where the template looks for that;
    - the role `developer` becomes `system` where the template says nothing of it: OpenAI's clients send the one for the
      other, and most templates refuse or misread it;
    - an assistant's message that has a `refusal` and no content has it as its content;
    - an assistant's `reasoning_content` is its `thinking` where the template reads that, as gpt-oss' does;
    - tools, or a keyword argument, that the template does not read are refused rather than ignored;
    - limits on time, memory and output (`template_process.py`).

    `render` blocks for a round trip to another process: call it from a thread. The text may hold special tokens that a
    user wrote: see `tokenizer.Tokenizer`.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        source: str,
        seconds: float = 2.0,
        reasoning: str = AUTO,
        calls: str = AUTO,
        switch: ReasoningSwitchConfig | None = None,
    ) -> None:
        """`templates` by name: "default", and "tool_use" where tools have one of their own. `source` says in errors
        where they come from. `reasoning`, `calls` and `switch` name the forms of answers, and the variable that says
        how much to reason, where the templates do not tell. Raises CheckpointError where a template cannot be parsed,
        or none reads that variable."""
        self._templates = dict(templates)
        self._forms = {
            name: form_of(template, reasoning=reasoning, calls=calls) for name, template in self._templates.items()
        }
        self._special_tokens = dict(special_tokens)
        self._source = source
        self._process = TemplateProcess(templates, seconds=seconds)
        try:
            self._reads = self._process.compile()
            self._switches = switches_of(self._reads, self._forms, source, switch)
        except TemplateError as error:
            self.close()
            raise CheckpointError(f"the chat template of {source} cannot be used: {error.message}") from None
        except CheckpointError:
            self.close()
            raise

    def answer_form(self, prompt: str = "", *, with_tools: bool) -> AnswerForm:
        """Of the answer to this rendered prompt."""
        form = self._forms[self._name(with_tools=with_tools)]
        return replace(form, begins=begins_after(form, prompt))

    def reads(self, variable: str, *, with_tools: bool = False) -> bool:
        """True where the template looks at `variable` ("tools", "enable_thinking")."""
        return variable in self._reads[self._name(with_tools=with_tools)]

    def least_effort(self, *, with_tools: bool = False) -> Effort | None:
        """The `reasoning_effort` with which the model reasons least; None where the template has no words for any."""
        taken = self._switches[self._name(with_tools=with_tools)].values
        return next((effort for effort in EFFORTS if effort in taken), None)

    def close(self) -> None:
        self._process.close()

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        reasoning_effort: Effort | None = None,
    ) -> str:
        """`continue_final_message` leaves the last message open, for the model to go on with it. `variables` are the
        client's own for this template (chat_template_kwargs); `reasoning_effort` becomes those that it has for that.

        Raises RequestError for messages that the template refuses or cannot render within its limits, UnsupportedError
        for what it has no use for, CheckpointError where the template reaches for what it must not.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message leaves the last message open, so add_generation_prompt must be false",
                param="continue_final_message",
            )
        name = self._name(with_tools=bool(tools))
        variables = self._switches[name].variables(reasoning_effort, variables or {})
        self._check_read(name, tools, variables)
        chat = [_plain_message(message, f"messages[{i}]") for i, message in enumerate(_checked(messages))]
        if "developer" not in self._templates[name]:
            chat = [{**message, "role": "system"} if message["role"] == "developer" else message for message in chat]
        if "thinking" in self._templates[name] and "reasoning_content" not in self._templates[name]:
            chat = [_with_thinking(message) for message in chat]
        marker = f"continue-{secrets.token_hex(8)} "  # the space shows whether the template trims
        if continue_final_message:
            _check_continued(chat[-1])
            chat[-1]["content"] += marker
        text = self._render(
            name,
            chat,
            {
                **self._special_tokens,
                **variables,
                "tools": tools or None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
        )
        return _cut_at(marker, text) if continue_final_message else text

    def _name(self, *, with_tools: bool) -> str:
        if with_tools and "tool_use" in self._templates:
            return "tool_use"
        return "default" if "default" in self._templates else next(iter(self._templates))

    def _check_read(self, name: str, tools: list[dict[str, Any]] | None, variables: Mapping[str, Any]) -> None:
        if tools and "tools" not in self._reads[name]:
            raise UnsupportedError(f"the chat template of {self._source} has no use for tools", param="tools")
        for key in variables:
            if key in _OWN_VARIABLES or key in self._special_tokens:
                raise RequestError(f"chat_template_kwargs may not set {key}", param="chat_template_kwargs")
            if key not in self._reads[name]:
                raise UnsupportedError(
                    f"the chat template of {self._source} does not read {key}", param="chat_template_kwargs"
                )

    def _written(self, name: str, chat: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The messages in the forms that templates want calls in, each for where the one before it fails. DeepSeek's
        join arguments to other text, and take a message for one with calls where its content is none."""
        calling = any("tool_calls" in message for message in chat)
        bare = calling and _TELLS_NO_CONTENT.search(self._templates[name]) is not None
        likely = [_without_content(message) for message in chat] if bare else chat
        yield likely
        if calling:
            yield [_with_text_arguments(message) for message in likely]
        if bare:
            yield chat

    def _render(self, name: str, chat: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        failures: list[TemplateError] = []
        for messages in self._written(name, chat):
            try:
                return self._process.render(name, {**variables, "messages": messages})
            except TemplateError as error:
                failures.append(error)
                if error.kind != "failed":
                    break
        message, kind = failures[0].message, failures[0].kind
        if kind == "raised":
            raise RequestError(message, param="messages", code="refused_by_chat_template")
        if kind == "limit":
            raise RequestError(
                f"the chat template of {self._source} was stopped: {message}", param="messages", code="template_limit"
            )
        if kind == "failed":
            raise RequestError(
                f"the chat template of {self._source} cannot render these messages: {message}",
                param="messages",
                code="chat_template_failed",
            )
        raise CheckpointError(f"the chat template of {self._source} does what it may not: {message}")


def load_chat_format(
    checkpoint: Path,
    text: CheckpointText,
    override: Path | None = None,
    *,
    reasoning: str = AUTO,
    calls: str = AUTO,
    switch: ReasoningSwitchConfig | None = None,
) -> ChatFormat | None:
    """The deployment's template file, else the checkpoint's; None where there is neither. Raises CheckpointError, or
    ConfigError where the deployment's file cannot be read."""
    templates, source = text.chat_templates, checkpoint.name
    if override is not None:
        try:
            templates, source = {"default": override.read_text(encoding="utf-8")}, override.name
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{override}: cannot be read as a chat template: {error}", param="chat_template"
            ) from error
    if not templates:
        return None
    return ChatFormat(templates, text.special_tokens, source=source, reasoning=reasoning, calls=calls, switch=switch)


def _checked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"messages may have at most {MAX_MESSAGES} entries, not {len(messages)}", param="messages")
    return messages


def _plain_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}.role must be a string", param=f"{where}.role")
    plain = {key: value for key, value in message.items() if value is not None}
    content = message.get("content")
    if not content and plain["role"] == "assistant":
        content = plain.pop("refusal", content)
    plain["content"] = _content_text(content, f"{where}.content")
    if "tool_calls" in plain:
        plain["tool_calls"] = [
            _plain_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(plain["tool_calls"])
        ]
    return plain


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    if "reasoning_content" not in message:
        return message
    plain = {key: value for key, value in message.items() if key != "reasoning_content"}
    return {"thinking": message["reasoning_content"], **plain}


def _without_content(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"] or None} if message.get("tool_calls") else message


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    texts = [json.dumps(function["arguments"], ensure_ascii=False) for function in functions]
    calls = zip(message["tool_calls"], functions, texts, strict=True)
    return {**message, "tool_calls": [{**call, "function": {**f, "arguments": text}} for call, f, text in calls]}


def _content_text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or a list of content parts", param=where)
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "text" or not isinstance(kind, str):
            raise RequestError(f'{where}[{i}] must have a type, and a text where that is "text"', param=where)
        else:
            raise UnsupportedError(
                f"{where}[{i}]: content of type {kind!r} is not supported, only text is", param=where
            )
    return "\n".join(texts)


def _plain_tool_call(call: Any, where: str) -> dict[str, Any]:
    """With `arguments` as an object, which is what templates write out."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must have a function with a name", param=where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RequestError(f"{where}.function.arguments must be a JSON object", param=f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _check_continued(message: dict[str, Any]) -> None:
    """Templates write calls behind the text, where the prompt ends: they would be lost."""
    if message.get("tool_calls"):
        raise RequestError(
            "continue_final_message goes on with a text, and the last message ends with tool_calls: send their "
            "results, or leave them out",
            param="continue_final_message",
            code="invalid_value",
        )


def _cut_at(marker: str, text: str) -> str:
    """The text up to the marker; where the template trimmed the message, without the space before it too."""
    at = text.rfind(marker.strip())
    if at < 0:
        raise RequestError(
            "the chat template leaves the last message's text out, so it cannot be continued",
            param="continue_final_message",
        )
    return text[:at] if text.startswith(marker, at) else text[:at].rstrip()
