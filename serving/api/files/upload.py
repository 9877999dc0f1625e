"""A multipart body with one file, within bounds: bytes, fields, seconds."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from serving.api.files.expiry import ExpiresAfter, expiry_of, is_expiry
from serving.errors import PayloadTooLargeError, RequestError

UPLOAD_SECONDS = 600.0
ENVELOPE_BYTES = 16 << 10  # the fields and boundaries around a file
MAX_NAME_CHARS = 255
PURPOSES = ("batch", "user_data", "assistants")


@dataclass(frozen=True, slots=True)
class Upload:
    file: UploadFile
    name: str  # as it is told again
    purpose: str  # empty where a form has none
    expires_after: ExpiresAfter | None


@asynccontextmanager
async def read_upload(
    request: Request, max_file_bytes: int, purposes: Sequence[str] = PURPOSES
) -> AsyncIterator[Upload]:
    """What was sent, while the block lasts. Without `purposes` the form is of a file alone.

    Raises HTTPException (408, 415), PayloadTooLargeError, RequestError, or ClientDisconnect.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "multipart/form-data":
        raise HTTPException(415, "the body must have content-type multipart/form-data")
    parser = MultiPartParser(
        request.headers, _bounded(request, max_file_bytes), max_files=1, max_fields=8, max_part_size=ENVELOPE_BYTES
    )
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            form = await parser.parse()
    except TimeoutError:
        raise HTTPException(
            408, f"the file did not arrive within {UPLOAD_SECONDS:g} seconds", headers={"connection": "close"}
        ) from None
    except (MultiPartException, KeyError, UnicodeError, LookupError):
        raise RequestError(
            "the body is not one multipart form with a boundary, at most 8 fields and 1 file",
            param="file",
            code="invalid_multipart",
        ) from None
    try:
        yield _checked(form, max_file_bytes, purposes)
    finally:
        await form.close()


def _checked(form: FormData, max_file_bytes: int, purposes: Sequence[str]) -> Upload:
    fields = ("file", "purpose") if purposes else ("file",)
    for name, _ in form.multi_items():
        if name not in fields and not (purposes and is_expiry(name)):
            raise RequestError(f"{name[:64]!r} is not a field of this form", param=name[:64], code="unknown_parameter")
        if len(form.getlist(name)) > 1:
            raise RequestError(f"{name} is given more than once", param=name, code="invalid_value")
    file, purpose = form.get("file"), form.get("purpose")
    for name in fields:
        if form.get(name) is None:
            raise RequestError(f"{name} is required", param=name, code="missing_required_parameter")
    if not isinstance(file, UploadFile):
        raise RequestError("file must be a file, with a filename", param="file", code="invalid_value")
    if purposes and (not isinstance(purpose, str) or purpose not in purposes):
        right = " or ".join(f'"{each}"' for each in purposes)
        raise RequestError(f"purpose must be {right}", param="purpose", code="invalid_value")
    if (file.size or 0) > max_file_bytes:
        raise _too_large(max_file_bytes)
    return Upload(file, _shown_name(file.filename or ""), str(purpose or ""), expiry_of(form.multi_items()))


def _shown_name(given: str) -> str:
    """As it is told again, and used for nothing: without folders and without what a terminal or a header would obey."""
    last = given.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(char for char in last if char.isprintable())
    return kept[:MAX_NAME_CHARS] or "upload"


async def _bounded(request: Request, max_file_bytes: int) -> AsyncGenerator[bytes, None]:
    size, most = 0, max_file_bytes + ENVELOPE_BYTES
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise _too_large(max_file_bytes)
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(max_file_bytes)
        yield part


def _too_large(most: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the file is larger than {most} bytes", param="file", code="payload_too_large")
