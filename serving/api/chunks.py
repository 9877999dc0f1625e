"""The server-sent events of one reply. What is the same in every chunk is encoded once; a chunk of plain text costs one
string encoding and one join."""

from typing import Any, Literal

import msgspec

from serving.api.sse import frame

encode = msgspec.json.Encoder().encode

ChunkObject = Literal["chat.completion.chunk", "text_completion"]


class Chunks:
    def __init__(
        self, kind: ChunkObject, reply_id: str, created: int, model: str, *, include_usage: bool, text_field: str
    ) -> None:
        """`text_field` is where a choice has its text, as the JSON around it: `"text":` or `"delta":{"content":`."""
        self._facts: dict[str, Any] = {"id": reply_id, "object": kind, "created": created, "model": model}
        # OpenAI: where usage was asked for, every chunk but the last says "usage": null.
        self._null_usage = b',"usage":null}' if include_usage else b"}"
        close = "}" * text_field.count("{")
        self._field = f",{text_field}".encode()
        self._after = f'{close},"logprobs":null,"finish_reason":null}}]'.encode() + self._null_usage + b"\n\n"
        self._begin()

    def sign(self, weights: str | None) -> None:
        """Chunks from here on name the weights that drew them."""
        if weights is not None and weights != self._facts.get("system_fingerprint"):
            self._facts["system_fingerprint"] = weights
            self._begin()

    def _begin(self) -> None:
        self._head = encode(self._facts)[:-1] + b","
        self._before = b"data: " + self._head + b'"choices":[{"index":'

    def text(self, index: int, text: str) -> bytes:
        """The chunk of a choice that has only text."""
        return b"".join((self._before, b"%d" % index, self._field, encode(text), self._after))

    def choice(self, choice: dict[str, Any], usage: dict[str, Any] | None, **more: Any) -> bytes:
        """Any chunk of one choice. `more` are members beside the choices."""
        tail = encode({"choices": [choice], **more})[1:-1]
        return frame(self._head + tail + (self._null_usage if usage is None else self._usage(usage)))

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk after the last one of every choice."""
        return frame(self._head + b'"choices":[]' + self._usage(usage))

    def _usage(self, usage: dict[str, Any]) -> bytes:
        return b',"usage":' + encode(usage) + b"}"
