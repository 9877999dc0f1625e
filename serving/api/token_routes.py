"""POST /tokenize and /detokenize, and GET /v1/models."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.chat_body import offered, plain
from serving.api.request_body import read_typed
from serving.api.service import Service
from serving.api.tokenize_body import DetokenizeBody, TokenizeBody
from serving.errors import ContextLengthError
from serving.generation.request import TextRequest


def token_routes(first: Service, max_body_bytes: int) -> list[Route]:
    async def tokenize(request: Request) -> Response:
        body = await read_typed(request, TokenizeBody, max_body_bytes)
        service = first.of(body.model)
        body.check_together()
        tokens = await encoded_prompt(service, body, request.state.request_id)
        reply: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": service.card.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        if body.return_token_strs:
            reply["token_strs"] = [service.generator.tokenizer.piece(token) for token in tokens]
        return _json(reply)

    async def detokenize(request: Request) -> Response:
        body = await read_typed(request, DetokenizeBody, max_body_bytes)
        return _json({"prompt": decoded_tokens(first, body)})

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def model_routes(service: Service) -> list[Route]:
    windows = windows_of(service)

    def card(name: str, window: int) -> dict[str, Any]:
        facts = {"created": service.card.created, "owned_by": service.card.owned_by, "max_model_len": window}
        return {"id": name, "object": "model", **facts}

    cards = {name: card(name, window) for name, window in windows.items()}

    def adapter_card(name: str) -> dict[str, Any]:
        return {**card(name, service.card.max_model_len), "parent": service.card.name}

    async def models(_: Request) -> Response:
        adapters = () if service.adapters is None else await service.adapters.all()
        return JSONResponse({"object": "list", "data": [*cards.values(), *map(adapter_card, adapters)]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name in cards:
            return JSONResponse(cards[name])
        return JSONResponse(adapter_card(await service.adapter_of(name)))

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
    ]


def windows_of(service: Service) -> dict[str, int]:
    """Of every name that means a model, without adapters; where rules decide, of the longest that they may find."""
    windows = {one.card.name: one.card.max_model_len for one in service.every}
    for rule in service.routing.rules:
        windows[rule.model] = max(windows.get(rule.model, 0), windows[rule.target])
    for embedder in service.embedders:
        windows.setdefault(embedder.name, embedder.facts.max_tokens)
    return windows


async def encoded_prompt(service: Service, body: TokenizeBody, request_id: str) -> list[int]:
    """As the generator would encode the same prompt or messages."""
    generator = service.generator
    if body.prompt is not None:
        return await generator.tokenize(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.tools:
        service.check_tool_format()  # of this model
    begin = body.add_generation_prompt
    text = await generator.render_chat(
        TextRequest(
            request_id=request_id,
            messages=[plain(message) for message in body.messages or ()],
            tools=offered(body.tools) if body.tools else None,
            add_generation_prompt=not body.continue_final_message if begin is None else begin,
            continue_final_message=bool(body.continue_final_message),
            chat_template_kwargs=body.chat_template_kwargs or {},
            reasoning_effort=body.reasoning_effort,
        )
    )
    return await generator.tokenize(text, add_special_tokens=bool(body.add_special_tokens), param="messages")


def decoded_tokens(service: Service, body: DetokenizeBody) -> str:
    """Raises RequestError."""
    service = service.of(body.model)
    if len(body.tokens) > service.card.max_model_len:
        raise ContextLengthError(
            f"tokens has {len(body.tokens)} ids; the model's window is {service.card.max_model_len} tokens",
            param="tokens",
        )
    return service.generator.detokenize(body.tokens)


def _json(reply: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")
