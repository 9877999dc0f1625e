"""The grammar of an answer, and where in it the grammar begins."""

from dataclasses import replace

from serving.engine.request import GrammarSpec
from serving.errors import UnsupportedError
from serving.generation.call_grammar import call_grammar
from serving.generation.chat_format import ChatFormat
from serving.generation.request import TextRequest
from serving.generation.tokenizer import Tokenizer

_REASONING_BEGINS, _REASONING_ENDS = "<think>", "</think>"


def answer_grammar(
    request: TextRequest, prompt: str | None, chat_format: ChatFormat | None, tokenizer: Tokenizer
) -> GrammarSpec | None:
    """None where any answer will do. Where the model reasons first, that part is free. `prompt` is the rendered chat.

    Raises UnsupportedError where it cannot be told in tokens where the reasoning ends.
    """
    grammar = request.grammar if request.calls is None else call_grammar(request.calls, tokenizer)
    free = request.calls is not None and not request.calls.required and request.calls.content is None
    if grammar is None or free or chat_format is None or request.messages is None or request.continue_final_message:
        return grammar
    if not expects_reasoning(prompt or "", chat_format, with_tools=bool(request.tools)):
        return grammar
    ids = tokenizer.encode(_REASONING_ENDS, add_special_tokens=False)
    if len(ids) != 1:
        raise UnsupportedError(
            f"grammar is not supported where the model reasons first: {_REASONING_ENDS}, after which its answer "
            f"begins, is {len(ids)} tokens; switch reasoning off with chat_template_kwargs",
            param="grammar",
        )
    return replace(grammar, starts_after=tuple(ids))


def expects_reasoning(prompt: str, chat_format: ChatFormat, *, with_tools: bool) -> bool:
    """Whether the answer to this prompt begins with reasoning: the template has opened it, or has the model open it
    and did not write an empty one in its stead, as Qwen3's does for enable_thinking false."""
    end = prompt.rstrip()
    if end.endswith(_REASONING_BEGINS):
        return True
    return chat_format.reads("enable_thinking", with_tools=with_tools) and not end.endswith(_REASONING_ENDS)
