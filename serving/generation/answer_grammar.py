"""The grammar of an answer, and where in it the grammar begins."""

from dataclasses import replace

from serving.engine.request import GrammarSpec
from serving.errors import UnsupportedError
from serving.generation.answers.answer_form import AnswerForm
from serving.generation.answers.harmony import FINAL, HARMONY, NEXT_MESSAGE
from serving.generation.answers.reasoning import REASONING_FORMS, Begins
from serving.generation.call_grammar import call_grammar
from serving.generation.chat_format import ChatFormat
from serving.generation.request import TextRequest
from serving.generation.tokenizer import Tokenizer


def answer_grammar(
    request: TextRequest, form: AnswerForm, chat_format: ChatFormat | None, tokenizer: Tokenizer
) -> GrammarSpec | None:
    """None where any answer will do. Where the model reasons first, that part is free.

    Raises UnsupportedError where no token could end the answer, where it cannot be told in tokens where the reasoning
    ends, and as `call_grammar`.
    """
    grammar = request.grammar if request.calls is None else call_grammar(request.calls, form.calls, tokenizer)
    if grammar is not None and not tokenizer.eos_token_ids:
        raise UnsupportedError(
            "grammar is not supported by this model: its checkpoint names no token that ends a text, so that an answer "
            "that is complete could not end; the operator can name one as eos_token_id in generation_config.json",
            param="grammar",
        )
    free = request.calls is not None and not request.calls.required and request.calls.content is None
    if grammar is None or free or chat_format is None or request.messages is None or request.continue_final_message:
        return grammar
    if form.reasoning == HARMONY:
        # A forced call is a message after the reasoning; content has a channel of its own.
        begin = FINAL if request.calls is None else NEXT_MESSAGE
        return replace(grammar, starts_after=tuple(tokenizer.encode(begin, add_special_tokens=False)))
    if not _expects_reasoning(form, chat_format, with_tools=bool(request.tools)):
        return grammar
    ends = REASONING_FORMS[form.reasoning].closing
    ids = tokenizer.encode(ends, add_special_tokens=False)
    if len(ids) != 1:
        raise UnsupportedError(
            f"grammar is not supported where the model reasons first: {ends}, after which its answer begins, is "
            f"{len(ids)} tokens; switch reasoning off with reasoning_effort",
            param="grammar",
        )
    return replace(grammar, starts_after=tuple(ids))


def _expects_reasoning(form: AnswerForm, chat_format: ChatFormat, *, with_tools: bool) -> bool:
    """Whether the answer begins with reasoning: the template has opened it, or has the model open it and did not write
    an empty one in its stead, as Qwen3's does for enable_thinking false."""
    if not form.reasoning:
        return False
    if form.begins is Begins.OPEN:
        return True
    return form.begins is Begins.EITHER and chat_format.reads("enable_thinking", with_tools=with_tools)
