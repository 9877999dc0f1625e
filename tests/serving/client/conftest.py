"""The client against the whole API over a scripted engine."""

from tests.serving.api.conftest import chat_format, make_api, tokenizer

__all__ = ["chat_format", "make_api", "tokenizer"]
