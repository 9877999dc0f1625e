"""Compiled grammars: made off the engine's thread, within limits, and kept while they are used.

A grammar is compiled twice: first in a process of its own, which its limits may end (`grammar_worker.py`), then here.
A stream gets a copy of the compiled matcher, which shares nothing that is written.
"""

import asyncio
import functools
import hashlib
import logging
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from serving.bounded_process import Ask, BoundedProcess, ProcessEndedError
from serving.engine.constraint import Constraint, brief
from serving.engine.grammar_worker import OUT_OF_MEMORY
from serving.engine.request import MAX_GRAMMAR_BYTES, GrammarKind, GrammarSpec
from serving.engine.vocabulary import Vocabulary
from serving.errors import EngineUnavailableError, OverloadedError, RequestError, WeftError
from serving.observability.logs import log_failure

log = logging.getLogger(__name__)

_WORKER = Path(__file__).with_name("grammar_worker.py")
_STARTING = 60.0  # seconds to start an interpreter and to read the vocabulary
_WAIT_PER_SECOND = 15.0  # of CPU time: the machine may be busy with other things
_RETRY_AFTER = 5.0  # seconds
# How the worker ends over a grammar: its limit of CPU time, or one of memory or stack, as Python, llguidance and the
# kernel tell of it. Anybody may send SIGKILL, and the kernel does where the machine has no memory left.
_OVER_LIMITS = frozenset(
    {-signal.SIGXCPU, OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}  # the last where macOS runs
)
_SPELLED = 4096  # forced texts whose tokens are kept: streams of one grammar ask for the same ones
_WORDS = {
    GrammarKind.JSON_SCHEMA: "the JSON schema",
    GrammarKind.REGEX: "the regular expression",
    GrammarKind.CHOICE: "the list of choices",
    GrammarKind.LARK: "the grammar",
    GrammarKind.EBNF: "the grammar",
}
# llguidance's own limits. The first four are on one mask: at 14,000 units of lexer fuel a millisecond.
PARSER_LIMITS = {
    "max_items_in_row": 2_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,  # 1 to 2 kB each, for each stream
    "initial_lexer_fuel": 1_000_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    cpu_seconds: float = 2.0  # of compiling, once; the kernel rounds up
    memory_bytes: int = 512 << 20  # for compiling one
    cached: int = 64
    cached_bytes: int = 512 << 20
    waiting: int = 32  # grammars to be compiled, one after another


@dataclass(slots=True)
class GrammarCounters:
    """Since the start."""

    asked: int = 0
    cache_hits: int = 0
    compiled: int = 0
    refused: int = 0
    compile_seconds: float = 0.0  # the grammar's time, also of those that were refused


@dataclass(frozen=True, slots=True)
class _Compiled:
    matcher: LLMatcher
    num_bytes: int


class _Tokens:
    """What llguidance wants of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.tokens = vocabulary.sized(vocab_size)
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        self._spell = functools.lru_cache(_SPELLED)(vocabulary.spell)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._spell(text if isinstance(text, str) else text.decode())


class Grammars:
    """May be asked from several event loops."""

    def __init__(
        self, vocabulary: Callable[[], Vocabulary], vocab_size: int, limits: GrammarLimits | None = None
    ) -> None:
        """`vocabulary` is called once, when the first grammar comes. `vocab_size` counts the model's logits."""
        self.counters = GrammarCounters()
        self._load_vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._limits = limits or GrammarLimits()
        self._loaded: tuple[Vocabulary, LLTokenizer, np.ndarray] | None = None
        self._worker = BoundedProcess(_WORKER, [str(self._limits.memory_bytes)], self._teach)
        self._thread = ThreadPoolExecutor(1, "grammar-compiler")
        self._closing = False
        self._lock = threading.Lock()  # of what follows
        self._known: OrderedDict[bytes, _Compiled | RequestError] = OrderedDict()  # last used last
        self._known_bytes = 0
        self._coming: dict[bytes, Future[_Compiled]] = {}

    async def constraint(self, spec: GrammarSpec, output: tuple[int, ...] = ()) -> Constraint:
        """A new stream's, which has read `output`. Raises RequestError for the parameter `grammar` where the grammar
        is malformed, not supported or over a limit, OverloadedError where too many wait to be compiled or none can be,
        EngineUnavailableError once this is closed."""
        compiled = await self._wait(self._compiled(spec))
        assert self._loaded is not None
        constraint = Constraint(compiled.matcher.deep_copy(), self._loaded[2], spec.starts_after)
        if output:
            await asyncio.to_thread(constraint.follow, output)
            if constraint.failure is not None:
                raise _refusal(f"the stream cannot go on under its grammar: {constraint.failure}", "invalid_grammar")
        return constraint

    def close(self) -> None:
        self._closing = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._worker.interrupt()
        self._thread.shutdown()
        self._worker.end()

    async def _wait(self, future: "Future[_Compiled]") -> _Compiled:
        """Several streams may wait for one grammar, so that none may cancel it."""
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # also where nobody waits any more
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if future.cancelled():  # by `close`, and not this stream by its client
                raise _stopped() from None
            raise

    def _compiled(self, spec: GrammarSpec) -> "Future[_Compiled]":
        size = len(spec.text.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise _refusal(f"grammar has {size} bytes, and may have {MAX_GRAMMAR_BYTES}", "grammar_too_large")
        key = hashlib.sha256(f"{spec.kind}:{spec.text}".encode()).digest()
        with self._lock:
            self.counters.asked += 1
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                self.counters.cache_hits += 1
                return _done(known)
            if (coming := self._coming.get(key)) is not None:
                self.counters.cache_hits += 1
                return coming
            if len(self._coming) >= self._limits.waiting:
                raise OverloadedError(
                    f"{len(self._coming)} grammars are waiting to be compiled", retry_after=_RETRY_AFTER
                )
            self._coming[key] = future = self._thread.submit(self._compile, key, spec)
        return future

    def _compile(self, key: bytes, spec: GrammarSpec) -> _Compiled:
        begin = time.perf_counter()
        try:
            found: _Compiled | RequestError = self._compile_within_limits(spec)
        except RequestError as error:
            found = error
        except BaseException:
            with self._lock:
                self._coming.pop(key)
            raise
        with self._lock:
            self._coming.pop(key)
            self._keep(key, found)
            self.counters.compile_seconds += time.perf_counter() - begin
            self.counters.refused += isinstance(found, RequestError)
            self.counters.compiled += isinstance(found, _Compiled)
        if isinstance(found, RequestError):
            raise found
        return found

    def _compile_within_limits(self, spec: GrammarSpec) -> _Compiled:
        _, tokenizer, _ = self._vocabulary()
        answer = self._answer(spec)
        if "refused" in answer:
            raise _refusal(f"{_WORDS[spec.kind]} cannot be used: {brief(answer['refused'])}", "invalid_grammar")
        matcher = LLMatcher(tokenizer, answer["grammar"], log_level=0, limits=LLParserLimits(**PARSER_LIMITS))
        if matcher.is_error():
            raise _refusal(f"{_WORDS[spec.kind]} cannot be used: {brief(matcher.get_error())}", "invalid_grammar")
        return _Compiled(matcher, answer["bytes"])

    def _answer(self, spec: GrammarSpec) -> dict[str, Any]:
        """The worker's. Raises RequestError where the grammar broke its limits; what else becomes of it, and a machine
        that gives it no time, says nothing about the grammar."""
        seconds = self._limits.cpu_seconds
        request = {"kind": spec.kind.value, "text": spec.text, "seconds": seconds, "limits": PARSER_LIMITS}
        try:
            self._worker.start()
        except (OSError, EOFError) as error:  # no room for it, or it was ended
            raise self._unavailable("did not start", error) from None
        try:
            return self._worker.ask(request, seconds * _WAIT_PER_SECOND)
        except (OSError, EOFError) as error:
            if self._closing or not isinstance(error, ProcessEndedError) or error.status not in _OVER_LIMITS:
                raise self._unavailable("gave no answer", error) from None
            raise _refusal(
                f"{_WORDS[spec.kind]} needs more than the {seconds:g} s of CPU time, the "
                f"{self._limits.memory_bytes >> 20} MiB or the depth that compiling one may take",
                "grammar_too_complex",
            ) from None

    def _unavailable(self, what: str, error: Exception) -> WeftError:
        if self._closing:
            return _stopped()
        message = f"the process that compiles grammars {what}"
        log_failure(log, message, error)
        return OverloadedError(message, retry_after=_RETRY_AFTER, code="grammars_unavailable")

    def _vocabulary(self) -> tuple[Vocabulary, LLTokenizer, np.ndarray]:
        """Loaded by the compiling thread, which is the only one to come here."""
        if self._loaded is None:
            vocabulary = self._load_vocabulary()
            wrapper = TokenizerWrapper(_Tokens(vocabulary, self._vocab_size))
            tokenizer = LLTokenizer(wrapper, n_vocab=self._vocab_size, eos_token=list(vocabulary.end_ids))
            self._loaded = (vocabulary, tokenizer, _all_but(vocabulary.end_ids, self._vocab_size))
        return self._loaded

    def _teach(self, ask: Ask) -> None:
        vocabulary, _, _ = self._vocabulary()
        message: dict[str, Any] = {
            "tokens": [token.hex() for token in vocabulary.sized(self._vocab_size)],
            "special": sorted(vocabulary.special_ids),
            "ends": list(vocabulary.end_ids),
        }
        ask(message, _STARTING)

    def _keep(self, key: bytes, found: _Compiled | RequestError) -> None:
        self._known[key] = found
        self._known_bytes += _bytes_of(found)
        while len(self._known) > self._limits.cached or self._known_bytes > self._limits.cached_bytes:
            _, dropped = self._known.popitem(last=False)
            self._known_bytes -= _bytes_of(dropped)


def _bytes_of(found: _Compiled | RequestError) -> int:
    return found.num_bytes if isinstance(found, _Compiled) else 0


def _done(found: _Compiled | RequestError) -> "Future[_Compiled]":
    future: Future[_Compiled] = Future()
    if isinstance(found, RequestError):
        future.set_exception(_refusal(found.message, found.code or ""))
    else:
        future.set_result(found)
    return future


def _stopped() -> EngineUnavailableError:
    return EngineUnavailableError("the engine has stopped", code="engine_stopped")


def _refusal(message: str, code: str) -> RequestError:
    return RequestError(message, param="grammar", code=code)


def _all_but(token_ids: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """[W] uint32 with the bits of all tokens but these."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[:vocab_size] = 1
    bits[list(token_ids)] = 0
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
