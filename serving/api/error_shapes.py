"""The shape in which a path tells failures: its protocol's."""

from collections.abc import Mapping

from serving.api.error_reply import ErrorShape, openai_shape
from serving.api.messages.error_shape import anthropic_shape

_BY_PATH: Mapping[str, ErrorShape] = {
    "/v1/messages": anthropic_shape,
    "/v1/messages/count_tokens": anthropic_shape,
}


def shape_of(path: str) -> ErrorShape:
    return _BY_PATH.get(path, openai_shape)
