"""The forms in which models write tool calls, and the mark in a chat template by which each is known."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.generation.answers import call_bodies
from serving.generation.answers.call_bodies import Calls, Schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    opening: str  # begins calls wherever it comes
    closing: str = ""  # ends them; "": the end of the answer does
    read: Callable[[str, Schemas], Calls]  # of what stands between
    # With what that ends, and is whole without the closing tag; "": it shows by itself, as JSON does; None: never.
    last: str | None = ""
    bare: str = ""  # an answer that begins with this character, its opening left out, may be calls to its end
    bare_name: bool = False  # so may one whose first line is a tool's name
    other_tags: tuple[str, ...] = ()  # inside of it, which must not be lost where they are control tokens

    def is_whole(self, body: str) -> bool:
        """Whether what stands between may be all of it, where something else than the model has ended it."""
        return self.last is not None and body.rstrip().endswith(self.last)

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for tag in (self.opening, self.closing, *self.other_tags) if tag)


_MISTRAL = CallForm(opening="[TOOL_CALLS]", read=call_bodies.mistral, other_tags=("[ARGS]", "[CALL_ID]"))
_DEEPSEEK = CallForm(
    opening="<｜tool▁calls▁begin｜>",
    closing="<｜tool▁calls▁end｜>",
    read=call_bodies.deepseek,
    other_tags=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)

CALL_FORMS: dict[str, CallForm] = {
    "hermes": CallForm(opening="<tool_call>", closing="</tool_call>", read=call_bodies.json_call),
    "qwen_xml": CallForm(opening="<tool_call>", closing="</tool_call>", read=call_bodies.qwen_xml, last="</function>"),
    "glm_xml": CallForm(
        opening="<tool_call>",
        closing="</tool_call>",
        read=call_bodies.glm_xml,
        last=None,
        other_tags=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "glm4": CallForm(opening="", read=call_bodies.name_and_json, bare_name=True),
    "llama3": CallForm(opening="<|python_tag|>", read=call_bodies.json_sequence, bare="{"),
    "llama4": CallForm(opening="<|python_start|>", closing="<|python_end|>", read=call_bodies.pythonic, bare="["),
    "mistral": _MISTRAL,
    "mistral_args": _MISTRAL,
    "deepseek": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "phi4": CallForm(opening="<|tool_call|>", closing="<|/tool_call|>", read=call_bodies.json_array),
    "olmo3": CallForm(opening="<function_calls>", closing="</function_calls>", read=call_bodies.pythonic),
}

# The first whose marks all stand in the template. Narrow ones first: three forms have <tool_call> tags.
MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("qwen_xml", ("<tool_call>", "<function=")),
    ("glm_xml", ("<tool_call>", "<arg_key>")),
    ("hermes", ("<tool_call>",)),
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("deepseek", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("phi4", ("<|tool_call|>",)),
    ("olmo3", ("<function_calls>",)),
    ("llama4", ("<|python_start|>",)),
    ("llama3", ("<|start_header_id|>", '"parameters"')),
    ("llama3", ("<|start_header_id|>", "Environment: ipython")),
    ("glm4", ("[gMASK]", "<|observation|>")),
)


def call_form_of(template: str) -> str:
    """Its name; "" where none is known by its marks."""
    return next((name for name, marks in MARKS if all(mark in template for mark in marks)), "")
