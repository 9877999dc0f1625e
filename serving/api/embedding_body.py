"""What POST /v1/embeddings reads."""

from typing import Annotated, ClassVar, Literal

import msgspec

from serving.api.strict_json import json_type
from serving.api.typed_body import Body, Refusal
from serving.engine.embedding import TextFacts, Texts
from serving.errors import RequestError, UnsupportedError

MAX_TEXTS = 2048  # OpenAI's
MAX_TOKENS = 300_000  # of all texts; OpenAI's


class EmbeddingBody(Body, kw_only=True):
    refused: ClassVar = {
        "truncate_prompt_tokens": Refusal("a text too long is refused, never cut"),
        "input_type": Refusal("queries and documents are embedded alike"),
        "messages": Refusal("texts are embedded, not chats"),
    }
    words: ClassVar = {"encoding_format": ("float", "base64")}

    model: str | None = None
    input: str | Annotated[list[int | str | list[int]], msgspec.Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None

    def check_dimensions(self, facts: TextFacts) -> None:
        """Raises RequestError, UnsupportedError."""
        most, fewest = facts.dimensions, facts.min_dimensions or facts.dimensions
        if self.dimensions is None or fewest <= self.dimensions <= most:
            return
        if fewest < most:
            raise RequestError(
                f"dimensions must lie in {fewest} .. {most}, not {self.dimensions}",
                param="dimensions",
                code="invalid_value",
            )
        raise UnsupportedError(
            f"dimensions is not supported: the vectors here have {most}, and are not cut; leave it out, or send {most}",
            param="dimensions",
        )

    def check_input(self) -> None:
        """Raises RequestError where kinds are mixed, a text is empty or they are too many."""
        items = self._items
        for at, item in enumerate(items):
            if type(item) is not type(items[0]):
                raise _wrong(
                    f"input[{at}] is {json_type(item)} where input[0] is {json_type(items[0])}; a list is all strings, "
                    "all token ids of one text, or all lists of token ids",
                    at,
                )
        if not isinstance(items[0], int) and len(items) > MAX_TEXTS:
            raise RequestError(
                f"input may be at most {MAX_TEXTS} texts, not {len(items)}", param="input", code="invalid_value"
            )
        for at, item in enumerate(items):
            if item in ("", []):
                raise _wrong(f"input[{at}] is empty: a text must have at least one character or token id", at)

    @property
    def strings(self) -> list[str]:
        """Of a checked input; empty where it is token ids."""
        return [item for item in self._items if isinstance(item, str)]

    @property
    def token_ids(self) -> Texts:
        """Of a checked input; empty where it is strings."""
        ids = tuple(item for item in self._items if isinstance(item, int))
        return (ids,) if ids else tuple(tuple(item) for item in self._items if isinstance(item, list))

    @property
    def _items(self) -> list[int | str | list[int]]:
        return [self.input] if isinstance(self.input, str) else self.input


def check_total(tokens: int) -> None:
    """Raises RequestError."""
    if tokens > MAX_TOKENS:
        raise RequestError(
            f"input has {tokens} tokens in all; a request may have {MAX_TOKENS}", param="input", code="invalid_value"
        )


def _wrong(message: str, at: int) -> RequestError:
    return RequestError(message, param=f"input[{at}]", code="invalid_value")
