"""One line of a batch, answered as the same request over HTTP would be: its validators, its gateway."""

import asyncio
import logging
from typing import Any

import msgspec

from serving.api.batches.batch import Endpoint
from serving.api.batches.batch_lines import Line
from serving.api.caller import Caller
from serving.api.chat_body import ChatBody
from serving.api.chat_reply import ChatReply
from serving.api.completion_body import CompletionBody
from serving.api.completion_reply import CompletionReply
from serving.api.error_reply import UNAVAILABLE_RETRY_SECONDS, error_object
from serving.api.service import Service, new_id
from serving.api.typed_body import typed
from serving.engine.request import Priority
from serving.errors import InternalError, UnsupportedError, WeftError
from serving.gateway.principal import Principal
from serving.observability.logs import log_failure

logger = logging.getLogger(__name__)


async def answered(
    service: Service, principal: Principal, endpoint: Endpoint, line: Line, slots: asyncio.Semaphore
) -> tuple[bytes, bool]:
    """A line of a result file, and whether it is one of the good. Waits where the server is full, the tenant at its
    limit, or the engine away; not in one of the `slots`, which other tenants' lines need."""
    while True:
        request_id = new_id()
        try:
            async with slots:
                caller = Caller(request_id=request_id, principal=principal, protocol="batch")
                whole = await _reply(service, caller, endpoint, line.body)
        except WeftError as error:
            if error.retryable:
                await asyncio.sleep(getattr(error, "retry_after", UNAVAILABLE_RETRY_SECONDS))
                continue
            return _record(line, request_id, error.http_status, error_object(error)), False
        except Exception as error:  # one line's failure is not its batch's
            log_failure(logger, "a batch's line failed", error, request_id=request_id)
            failure = InternalError()
            return _record(line, request_id, failure.http_status, error_object(failure)), False
        return _record(line, request_id, 200, msgspec.Raw(whole)), True


async def _reply(service: Service, caller: Caller, endpoint: Endpoint, given: dict[str, Any]) -> bytes:
    kind = ChatBody if endpoint == "/v1/chat/completions" else CompletionBody
    body = typed(kind, given)
    if body.stream:
        raise UnsupportedError("stream is not supported in a batch: leave it out", param="stream")
    service.check_served(body.model)
    body.check_together()
    body = msgspec.structs.replace(body, priority=Priority.BATCH)
    if isinstance(body, ChatBody):
        return await ChatReply(service, body, caller).whole()
    return await CompletionReply(service, body, caller).whole()


def unanswered(line: Line, code: str, message: str) -> bytes:
    """The record of a line that was not run."""
    error = {"code": code, "message": message}
    return _encoded({"id": f"batch_req_{new_id()}", "custom_id": line.custom_id, "response": None, "error": error})


def _record(line: Line, request_id: str, status: int, body: object) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _encoded({"id": f"batch_req_{request_id}", "custom_id": line.custom_id, "response": response, "error": None})


def _encoded(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record)
