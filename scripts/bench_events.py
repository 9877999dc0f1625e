"""What the event log costs a request: off, with a request that is not sampled, with one that is, and with its text.

    python -m scripts.bench_events

Counts what the API process does for the events alone of a request that is admitted, has 100 deltas and ends, in
microseconds of CPU for each request: of the thread that serves it, and of the process, which has the writer's too.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry

from scripts.flags import flags_of
from serving.api.caller import Caller
from serving.api.request_events import recorded_request
from serving.engine.request import FinishReason, Priority, TokenEvent
from serving.events.event_log import EventLog, WrittenEventLog
from serving.events.event_metrics import EventMetrics
from serving.events.outbox import Outbox
from serving.gateway.ask import Ask
from serving.gateway.capacity import Place
from serving.gateway.lease import Lease, QueueNotice
from serving.gateway.principal import Principal
from serving.generation.choice import ChoiceStep
from serving.generation.request import TextDelta, Usage
from serving.settings.events import EventsConfig

REQUESTS, ROUNDS, DELTAS = 1000, 5, 100
ACME = Principal(key_id="jwt:ada", tenant="acme", tier="gold")
ASK = Ask(
    prompt_of={"r": "r"},
    prompt_tokens=200,
    output_tokens=256,
    choices=1,
    longest_prompt=200,
    longest_stream=456,
    longest_output=256,
    output_was_stated=True,
    model="demo",
    stream=True,
)


def lease() -> Lease:
    return Lease(
        principal=ACME,
        ask=ASK,
        priority=Priority.STANDARD,
        place=Place(priority=Priority.STANDARD, choices=1, tokens=200.0, arrived=1, joined=0.0, uncorrected=0.1),
        verdict=None,
        output_cap=None,
        predicted_seconds=0.1,
        metadata={},
        on_first_token=lambda _: None,
        queue=lambda _: QueueNotice(0, 0.0, 0.0),
        admitted_at=0.0,
    )


def steps() -> list[ChoiceStep]:
    usage = Usage(prompt_tokens=200, cached_tokens=0, completion_tokens=1)
    first = TokenEvent(request_id="r", token_ids=(1,), cached_tokens=0, queue_seconds=0.01)
    made = [ChoiceStep(0, first, TextDelta(index=0, usage=usage, text="word "))]
    made += [ChoiceStep(0, TokenEvent(request_id="r", token_ids=(1,)), made[0].delta) for _ in range(DELTAS - 2)]
    end = TokenEvent(request_id="r", finish_reason=FinishReason.STOP)
    return [*made, ChoiceStep(0, end, TextDelta(index=0, usage=usage, finish_reason=FinishReason.STOP))]


def request(log: EventLog, number: int, admitted: Lease, course: list[ChoiceStep]) -> None:
    caller = Caller(request_id=f"{number:032x}", principal=ACME, protocol="chat.completions")
    with recorded_request(log, caller, "demo", "grace") as events:
        events.admitted(admitted)
        for step in course:
            events.see(0, step)


def microseconds(log: EventLog) -> tuple[float, float]:
    """Of the serving thread, and of all threads."""
    admitted, course = lease(), steps()
    thread, process = time.thread_time(), time.process_time()
    for number in range(REQUESTS):
        request(log, number, admitted, course)
    own = time.thread_time() - thread
    log.close()
    return own / REQUESTS * 1e6, (time.process_time() - process) / REQUESTS * 1e6


def log_for(outbox: Path, settings: dict[str, Any] | None) -> EventLog:
    if settings is None:
        return EventLog()
    metrics = EventMetrics(CollectorRegistry())
    return WrittenEventLog(EventsConfig(outbox=outbox, **settings), Outbox(outbox), "demo", metrics)


def main() -> None:
    flags_of(__doc__).parse_args()
    kinds: dict[str, dict[str, Any] | None] = {
        "off": None,
        "not sampled": {"sample": 0.0},
        "sampled": {},
        "with text": {"text": True},
    }
    for name, settings in kinds.items():
        with tempfile.TemporaryDirectory(prefix="weft-events-") as folder:
            rounds = [microseconds(log_for(Path(folder) / f"{number}", settings)) for number in range(ROUNDS)]
        own, whole = (median(of) for of in zip(*rounds, strict=True))
        print(f"{name:<12} {own:7.1f} us a request on the thread that serves, {whole:7.1f} us of the process")


if __name__ == "__main__":
    main()
