"""One file of a store, from its bytes to passages that can be found.

    parse    in a process with limits; the text is kept
    cut      into passages, always the same of one text
    embed    a few at a time, of the batch class; each few are kept with their vectors in one transaction

What is kept is not done again: after a kill the passages that are there are counted, and the rest follow.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from serving.errors import QuotaError, WeftError
from serving.orchestrator.retrieval.catalog import Catalog
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.index import DocumentGoneError, Index
from serving.orchestrator.retrieval.parse_process import FileUnreadableError, ParseLimits, ParseProcess
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage, passages_of
from serving.orchestrator.retrieval.vector_store import StoreFile

PASSAGES_AT_ONCE = 8  # about forty windows
RETRY_SECONDS = 5.0  # where whoever refuses does not say when


class FileIngest:
    def __init__(
        self,
        catalog: Catalog,
        index: Index,
        encoding: Encoding,
        contents: Callable[[str], Path],
        limits: ParseLimits,
    ) -> None:
        """`contents` says where the bytes of a file are, by its id."""
        self._catalog = catalog
        self._index = index
        self._encoding = encoding
        self._contents = contents
        self._limits = limits

    async def run(self, file: StoreFile) -> None:
        """To its end, good or bad. Waits where the server is full, the tenant at its limit, or the engine away.
        Cancelled, or where a disk fails, which raises, it leaves what it has, for whoever goes on."""
        try:
            await self._ingest(file)
        except FileUnreadableError as error:
            await self._fail(file, error.code, error.message)
        except QuotaError as error:  # the tenant can mend it; OpenAI has no word for that
            await self._fail(file, error.code or error.kind, error.message)
        except DocumentGoneError:
            return  # the file, or the whole store, was deleted meanwhile
        except WeftError as error:
            if error.retryable:
                raise
            await self._fail(file, "server_error", error.message)

    async def _ingest(self, file: StoreFile) -> None:
        if file.encoder != self._encoding.name:
            message = (
                f"the store's vectors are of {file.encoder}, and the server's encoder is now {self._encoding.name}"
            )
            raise FileUnreadableError("server_error", message)
        document, passages = await self._cut(file)
        size = len(document.text.encode()) + sum(passage.bytes(self._encoding.dimensions) for passage in passages)
        current = await self._change(file, lambda at: replace(at, usage_bytes=size))
        if current is None:
            return
        await self._catalog.check_room(current)
        done = await self._index.count(file.store_id, file.file_id)
        while done < len(passages):
            done = await self._add(file, done, passages[done : done + PASSAGES_AT_ONCE])
        await self._change(file, lambda at: replace(at, status="completed", passages_done=done))

    async def _cut(self, file: StoreFile) -> tuple[Document, list[Passage]]:
        """From what is kept, where that is of the same making."""
        if file.passages is not None:
            document = await self._index.document(file.store_id, file.file_id)
            if document is not None:
                passages = await self._passages(file, document)
                if len(passages) == file.passages:
                    return document, passages
        document = await self._parse(file)
        passages = await self._passages(file, document)
        await self._index.put_document(file.store_id, file.file_id, document)
        if await self._change(file, lambda at: replace(at, passages=len(passages), passages_done=0)) is None:
            await self._index.remove(file.store_id, file.file_id)
            raise DocumentGoneError(file.file_id)
        return document, passages

    async def _parse(self, file: StoreFile) -> Document:
        process = ParseProcess(self._limits)
        try:
            return await asyncio.to_thread(process.read, self._contents(file.file_id), file.filename)
        except asyncio.CancelledError:
            process.interrupt()
            raise

    async def _passages(self, file: StoreFile, document: Document) -> list[Passage]:
        encoding = self._encoding
        return await asyncio.to_thread(passages_of, document, encoding.counter(), file.sizes, encoding.window_tokens)

    async def _add(self, file: StoreFile, done: int, passages: Sequence[Passage]) -> int:
        """The passages that are held then."""
        vectors = await self._vectors(file, passages)
        ends = np.cumsum([len(passage.windows) for passage in passages])
        embedded = [
            EmbeddedPassage(passage, part) for passage, part in zip(passages, np.split(vectors, ends[:-1]), strict=True)
        ]
        await self._index.add(file.store_id, file.file_id, done, embedded)
        done += len(passages)
        if await self._change(file, lambda at: replace(at, passages_done=done)) is None:
            raise DocumentGoneError(file.file_id)
        return done

    async def _vectors(self, file: StoreFile, passages: Sequence[Passage]) -> np.ndarray:
        texts = [passage.text_of(window) for passage in passages for window in passage.windows]
        encoded = await asyncio.to_thread(self._encoding.tokenizer.encode, texts)
        while True:
            try:
                return await self._encoding.embed(encoded, file.principal)
            except WeftError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(getattr(error, "retry_after", RETRY_SECONDS))

    async def _change(self, file: StoreFile, change: Callable[[StoreFile], StoreFile]) -> StoreFile | None:
        """Not of a file that was cancelled meanwhile."""
        return await self._catalog.change_file(
            file.store_id, file.file_id, lambda at: change(at) if at.status == "in_progress" else at
        )

    async def _fail(self, file: StoreFile, code: str, message: str) -> None:
        await self._catalog.change_file(
            file.store_id,
            file.file_id,
            lambda at: replace(at, status="failed", usage_bytes=0, error_code=code, error_message=message),
            remove=True,
        )
