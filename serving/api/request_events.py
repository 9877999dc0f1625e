"""What the event log is told of one request that is admitted here or refused: the same for every protocol.

with recorded_request(log, caller, model) as events:
    ...                              # raises where it is refused
    events.admitted(lease)
    events.see(prompt, step) ...     # of what it generates
                                     # the end of the block tells how it ended; by then its lease is settled
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypedDict

from serving.api.caller import Caller
from serving.api.error_reply import error_code
from serving.errors import InternalError, WeftError
from serving.events.event_log import EventLog
from serving.events.event_types import (
    FirstToken,
    OfRequest,
    Protocol,
    RequestAdmitted,
    RequestEnded,
    RequestNotice,
    RequestRefused,
)
from serving.gateway.lease import Lease
from serving.gateway.principal import ANONYMOUS
from serving.gateway.rate_fields import DEGRADED
from serving.generation.choice import ChoiceStep
from serving.generation.request import PreparedPrompt

_FAILED = error_code(InternalError())


class _Who(TypedDict):
    tenant: str
    model: str
    protocol: Protocol
    key: str | None
    user: str | None
    trace_id: str | None


class RequestEvents:
    """Of a request that is not recorded."""

    is_recorded = False

    def admitted(self, lease: Lease, prepared: Sequence[PreparedPrompt] = ()) -> None:
        """Once, however often it is called: a stream that is taken up may be admitted several times."""

    def see(self, prompt: int, step: ChoiceStep) -> None:
        """What one choice does next."""

    def notice(self, kind: str, detail: str | None = None) -> None:
        """What its reader is told about the answer. Both are words of the server's."""


class RecordedRequest(RequestEvents):
    is_recorded = True

    def __init__(self, log: EventLog, caller: Caller, model: str, user: str | None) -> None:
        self._log = log
        self._caller = caller
        self._model = model
        self._user = user
        self._who: _Who | None = None
        self._lease: Lease | None = None
        self._prompts: tuple[str, ...] | None = None
        self._texts: dict[tuple[int, int], list[str]] = {}
        self._queue_seconds: float | None = None
        self._cached_tokens = 0
        self._first: float | None = None  # seconds since the arrival
        self._finish_reasons: list[str] = []

    def admitted(self, lease: Lease, prepared: Sequence[PreparedPrompt] = ()) -> None:
        known, self._lease = self._lease, lease
        if known is not None:
            return
        ask = lease.ask
        self._model = ask.model
        if self._log.with_text:
            self._prompts = tuple(self._log.text_of(prompt.prompt_text or "") or "" for prompt in prepared)
        self._add(
            RequestAdmitted(
                **self._named(),
                priority=lease.priority.value,
                stream=ask.stream,
                choices=ask.choices,
                prompt_tokens=ask.prompt_tokens,
                most_output_tokens=ask.output_tokens,
                predicted_seconds=lease.predicted_seconds,
                continues=ask.continues,
                degraded=lease.metadata.get(DEGRADED),
            )
        )

    def see(self, prompt: int, step: ChoiceStep) -> None:
        event, delta = step.event, step.delta
        if event.queue_seconds is not None and self._queue_seconds is None:
            self._queue_seconds, self._cached_tokens = event.queue_seconds, event.cached_tokens or 0
        if delta is None:
            return
        if self._first is None:
            self._note_first_token()
        if self._prompts is not None and delta.text:
            self._texts.setdefault((prompt, step.index), []).append(delta.text)
        if delta.finish_reason is not None:
            self._finish_reasons.append(delta.finish_reason.value)

    def notice(self, kind: str, detail: str | None = None) -> None:
        self._add(RequestNotice(**self._named(), kind=kind, detail=detail))

    def end(self, error: BaseException | None) -> None:
        """`error` is what ended it, None where nothing did."""
        if self._lease is None:
            self._refuse(error)
            return
        used = self._lease.used
        outcome, code = self._outcome(error, self._lease.ask.choices)
        self._add(
            RequestEnded(
                **self._named(),
                outcome=outcome,
                code=code,
                finish_reasons=tuple(self._finish_reasons),
                prompt_tokens=used.prompt,
                cached_tokens=used.cached,
                output_tokens=used.output,
                device_seconds=max(0.0, self._lease.device_seconds),
                seconds=self._age(),
                first_token_seconds=self._first,
                prompts=self._prompts,
                outputs=None
                if self._prompts is None
                else tuple(self._log.text_of("".join(pieces)) or "" for _, pieces in sorted(self._texts.items())),
            )
        )

    def _refuse(self, error: BaseException | None) -> None:
        """A client who does not wait to be let in is not refused."""
        if isinstance(error, WeftError):
            reason, retryable, after = error_code(error), error.retryable, getattr(error, "retry_after", None)
        elif isinstance(error, Exception):
            reason, retryable, after = _FAILED, False, None
        else:
            return
        self._add(RequestRefused(**self._named(), reason=reason, retryable=retryable, retry_after=after))

    def _outcome(
        self, error: BaseException | None, choices: int
    ) -> tuple[Literal["complete", "failed", "left"], str | None]:
        if error is None or (choices and len(self._finish_reasons) == choices):
            return "complete", None
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return "left", None
        return "failed", error_code(error) if isinstance(error, WeftError) else _FAILED

    def _note_first_token(self) -> None:
        self._first = self._age()
        self._add(
            FirstToken(
                **self._named(),
                seconds=self._first,
                queue_seconds=self._queue_seconds,
                cached_tokens=self._cached_tokens,
            )
        )

    def _age(self) -> float:
        return time.monotonic() - self._caller.arrival

    def _named(self) -> _Who:
        if self._who is None or self._who["model"] != self._model:
            caller, log = self._caller, self._log
            tenant, key = caller.principal.tenant, caller.principal.key_id
            self._who = _Who(
                tenant=tenant,
                model=self._model,
                protocol=caller.protocol,
                key=None if key == ANONYMOUS else log.name_of(tenant, key),
                user=log.name_of(tenant, self._user) if self._user else None,
                trace_id=caller.trace.trace_id,
            )
        return self._who

    def _add(self, data: OfRequest) -> None:
        self._log.add(data, self._caller.request_id)


UNRECORDED = RequestEvents()


@contextmanager
def recorded_request(log: EventLog, caller: Caller, model: str, user: str | None = None) -> Iterator[RequestEvents]:
    """`model` is the one that is served, until it is admitted to another. `user` is whom the client asks for, in its
    own words."""
    if not log.records(RequestEnded.group, caller.request_id):
        yield UNRECORDED
        return
    events = RecordedRequest(log, caller, model, user)
    try:
        yield events
    except BaseException as error:
        events.end(error)
        raise
    events.end(None)
