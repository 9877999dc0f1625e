"""A turn of /v1/responses, as a scripted exchange tells it."""

import json
from typing import Any

from tests.serving.api.page.scripted_chat import END, Exchange


def tell(exchange: Exchange, kind: str, **facts: Any) -> None:
    exchange.raw(f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n".encode())


def message(text: str, annotations: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": annotations or []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def begin(exchange: Exchange, response_id: str = "resp_1") -> None:
    exchange.start()
    tell(exchange, "response.created", response={"id": response_id, "status": "in_progress"})


def end(
    exchange: Exchange,
    output: list[dict[str, Any]],
    status: str = "completed",
    response_id: str = "resp_1",
    **facts: Any,
) -> None:
    response = {"id": response_id, "status": status, "output": output, "usage": {"output_tokens": 3}, **facts}
    tell(exchange, f"response.{status}", response=response)
    exchange.raw(END)
