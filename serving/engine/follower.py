"""Processes 1, 2, ... of a replica on several hosts: they run the leader's plans, and draw what it draws.

A follower has no scheduler and no streams. It looks for its leader until it finds it, joins once, and ends when the
leader does: its supervisor starts another, which looks for the next leader.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from secrets import token_bytes
from typing import Any

import grpc
import msgspec
import numpy as np

from serving.engine import cluster_wire
from serving.engine.cluster_wire import Begin, FromLeader, Goodbye, Hello, Keys, Loaded, Masks, Seal, Seated
from serving.engine.engine import Pending, SizedExecutor, StepExecutor
from serving.engine.leader import KEEPALIVE_SECONDS
from serving.engine.plan import StepPlan
from serving.engine.plan_wire import PlanChange, PlanReceiver
from serving.engine.wire import channel_options
from serving.errors import EngineError, SetupError, WeftError

_AGAIN_SECONDS = 0.5
_GREET_SECONDS = 10.0
_SEAT_SECONDS = 10.0
_REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


class Membership:
    """A follower's place beside one leader, made by `join`, once all hosts are there."""

    def __init__(
        self, channel: grpc.Channel, stream: Any, keys: Keys, outgoing: "queue.SimpleQueue[bytes | None]"
    ) -> None:
        self._channel = channel
        self._stream = stream
        self._seal = Seal(keys.of_leader)
        self._outgoing = outgoing
        self._arrived: queue.SimpleQueue[FromLeader] = queue.SimpleQueue()
        self._take_seat()
        self.runtime = self._begin()

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Reads on, in a thread. `on_lost(why)` is called from there where the leader goes without a goodbye."""
        threading.Thread(target=self._read, args=(on_lost,), name="from-leader", daemon=True).start()

    def loaded(self, executor: SizedExecutor) -> None:
        message = Loaded(executor.limits, executor.vocab_size, executor.programs_compiled)
        self._outgoing.put(cluster_wire.encode(message))

    def orders(self) -> Iterator[StepPlan | np.ndarray]:
        """Plans, and after each with constrained ranges the masks for its draw, until the leader says goodbye.

        Raises EngineError for a plan that did not arrive as it was sent.
        """
        receiver = PlanReceiver()
        while not isinstance(message := self._arrived.get(), Goodbye):
            match message:
                case PlanChange():
                    yield receiver.plan(message)
                case Masks():
                    yield message.array()
                case Seated() | Begin():
                    raise EngineError("the leader began twice", code="plans_differ")

    def leave(self) -> None:
        self._outgoing.put(None)
        self._channel.close()

    def _take_seat(self) -> None:
        """A call that meets a leader just as it ends may never be answered, over a connection that lives: so it waits
        for an answer only so long. Raises grpc.RpcError."""
        timer = threading.Timer(_SEAT_SECONDS, self._stream.cancel)
        timer.daemon = True
        timer.start()
        try:
            message = self._next()
        finally:
            timer.cancel()
        if not isinstance(message, Seated):
            raise EngineError(f"the leader began with {type(message).__name__}", code="plans_differ")

    def _begin(self) -> str:
        """Raises grpc.RpcError where the leader refuses, or ends first."""
        message = self._next()
        if not isinstance(message, Begin):
            raise EngineError(f"the leader went on with {type(message).__name__}", code="plans_differ")
        return message.runtime

    def _next(self) -> FromLeader:
        return cluster_wire.decode_from_leader(self._seal.open(next(self._stream)))

    def _read(self, on_lost: Callable[[str], None]) -> None:
        try:
            while True:
                message = self._next()
                self._arrived.put(message)
                if isinstance(message, Goodbye):
                    return
        except StopIteration:
            on_lost("the leader ended the stream")
        except grpc.RpcError as error:
            on_lost(f"the leader was lost: {_details(error)}")
        except (WeftError, msgspec.DecodeError) as error:
            on_lost(f"the leader is not understood: {error}")


def join(
    address: str,
    process: int,
    token: bytes,
    runs: Mapping[str, str],
    waiting: Callable[[str], None],
    *,
    keepalive_seconds: float = KEEPALIVE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Membership:
    """Looks for the leader until it is there and every other host too, however long. `waiting` hears what for.

    Raises SetupError where the leader refuses this host.
    """
    refused: bytes | None = None  # the epoch of a leader that did not take the token
    while True:
        channel = _channel(address, keepalive_seconds)
        epoch = None
        try:
            waiting(f"looking for the leader at {address}")
            epoch = channel.unary_unary(f"/{cluster_wire.SERVICE}/{cluster_wire.GREET}")(b"", timeout=_GREET_SECONDS)
            waiting(f"waiting for the other hosts beside the leader at {address}")
            return _enter(channel, Keys(token, epoch, process, nonce := token_bytes(16)), process, nonce, runs)
        except (grpc.RpcError, StopIteration) as error:
            channel.close()
            _raise_refusal(error, refused is not None and refused == epoch)
            refused = epoch if _code(error) == grpc.StatusCode.UNAUTHENTICATED else None
        sleep(_AGAIN_SECONDS)


def follow(executor: StepExecutor, orders: Iterable[StepPlan | np.ndarray]) -> None:
    """Does what `EngineLoop.step` does with the same plans: each is on the device before the last one is waited for."""
    last: Pending | None = None
    for order in orders:
        if isinstance(order, np.ndarray):
            assert last is not None
            last.draw(order)
            continue
        started = executor.dispatch(order)
        if last is not None:
            last.collect()
        last = started


def _enter(channel: grpc.Channel, keys: Keys, process: int, nonce: bytes, runs: Mapping[str, str]) -> Membership:
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    outgoing.put(cluster_wire.encode(Hello(dict(runs))))
    metadata = (
        (cluster_wire.PROCESS_KEY, str(process)),
        (cluster_wire.NONCE_KEY, nonce),
        (cluster_wire.PROOF_KEY, keys.proof),
    )
    call = channel.stream_stream(f"/{cluster_wire.SERVICE}/{cluster_wire.FOLLOW}")
    stream = call(map(Seal(keys.of_follower).close, iter(outgoing.get, None)), metadata=metadata)
    try:
        return Membership(channel, stream, keys, outgoing)
    except BaseException:
        outgoing.put(None)  # gRPC reads what is to be sent on a thread, which would wait for more of it forever
        raise


def _channel(address: str, keepalive_seconds: float) -> grpc.Channel:
    options = {
        **dict(channel_options(keepalive_seconds)),
        "grpc.enable_http_proxy": 0,  # the hosts of a cluster reach each other directly, or not at all
        "grpc.use_local_subchannel_pool": 1,  # or a new channel would wait out the last one's backoff
    }
    return grpc.insecure_channel(address, options=list(options.items()))


def _raise_refusal(error: Exception, again: bool) -> None:
    """Raises SetupError where asking again would not help. `again`: the same leader has refused the token before."""
    code = _code(error)
    if code in _REFUSALS or (code == grpc.StatusCode.UNAUTHENTICATED and again):
        raise SetupError(f"the leader refuses this host: {_details(error)}", param="cluster") from error


def _code(error: Exception) -> Any:
    return error.code() if isinstance(error, grpc.Call) else None


def _details(error: Exception) -> str:
    return error.details() or "no reason given" if isinstance(error, grpc.Call) else str(error)
