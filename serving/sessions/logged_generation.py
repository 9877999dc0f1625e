"""What a log holds of one generation, whatever protocol asked for it: the request as admitted, and the engine's events.

Text is not kept: prompts and events give it again, character for character, by `generation/choice.py`. The log itself
(`generation_log.py`) sees bytes only.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from serving.engine.request import TokenEvent
from serving.engine.wire import Failure
from serving.errors import WeftError
from serving.generation.request import PreparedPrompt


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """One client request that passed every check, with all that another process needs to go on with it."""

    stream_id: str  # unguessable: where nobody has to say who they are, it alone opens the stream
    protocol: str  # whose replies are made of it
    request_id: str
    body: bytes  # what the protocol needs to write its reply; opaque here
    created: int  # seconds since 1970, as the reply says
    prompts: tuple[PreparedPrompt, ...]
    owner: str = ""  # tenant and key that may read it
    principal: bytes = b""  # opaque here: on whose account it is continued
    model: str = ""  # that answers; empty: the deployment's first
    named: str = ""  # how the reply calls it; empty: by that name
    fallback: dict[str, str] | None = None  # told where it stands in for another
    grace_seconds: float | None = None  # without a reader before it is given up; None: it needs no reader


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An engine's event of one choice of one prompt."""

    prompt: int
    choice: int
    event: TokenEvent

    def by_token(self) -> Iterator[TokenEvent]:
        """The event as if each of its tokens had come in a step of its own. How many come in one depends on when they
        were asked for; a reader's position in the text must not, or it is lost with a log that had not been written.
        Guesses that were right come first: each is counted where it stands, as a stop string may end the text there."""
        event, last = self.event, len(self.event.token_ids) - 1
        if last < 1:
            yield event
            return
        drawn_by = TokenEvent(request_id=event.request_id, weights=event.weights)
        for place, token_id in enumerate(event.token_ids):
            of_all = event if place == last else drawn_by
            yield replace(
                of_all,
                token_ids=(token_id,),
                logprobs=event.logprobs[place : place + 1],
                prompt_logprobs=() if place else event.prompt_logprobs,
                cached_tokens=None if place else event.cached_tokens,
                queue_seconds=None if place else event.queue_seconds,
                guessed_tokens=0 if place else event.guessed_tokens,
                accepted_tokens=int(place < event.accepted_tokens),
            )


class _Event(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    prompt: int
    choice: int
    event: TokenEvent


class _End(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    failure: Failure | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Event | _End)
_admitted = msgspec.msgpack.Decoder(Admitted)
_defaults = {field.name: field.default for field in dataclasses.fields(TokenEvent)}


def encode_admitted(admitted: Admitted) -> bytes:
    return _encoder.encode(admitted)


def decode_admitted(data: bytes) -> Admitted:
    """Raises msgspec.ValidationError, as where another version of weft wrote it."""
    return _admitted.decode(data)


def encode_event(logged: LoggedEvent) -> bytes:
    """Members at their default are left out: most events are one token id."""
    event = logged.event
    said: dict[str, Any] = {"request_id": ""}  # known by the choice
    for name, default in _defaults.items():
        value = getattr(event, name)
        if name != "request_id" and value != default:
            said[name] = value
    return _encoder.encode(("e", logged.prompt, logged.choice, said))


def encode_end(failure: WeftError | None) -> bytes:
    """A generation's last record. `failure` None: every choice has ended."""
    return _encoder.encode(_End(None if failure is None else Failure.of(failure)))


def decode_record(record: bytes) -> LoggedEvent | None:
    """None is the end. Raises the failure that ended the generation."""
    found = _decoder.decode(record)
    if isinstance(found, _Event):
        return LoggedEvent(found.prompt, found.choice, found.event)
    if found.failure is not None:
        raise found.failure.error()
    return None


def past_events(records: Iterable[bytes]) -> list[LoggedEvent]:
    """The events of a generation that has not ended."""
    return [event for record in records if (event := decode_record(record)) is not None]
