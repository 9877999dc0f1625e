"""Process 0 of a replica on several hosts: it gathers the others, and sends them every plan before it runs it itself.

    gather()    until every follower is here           a follower that leaves may come back
    lead()      until all have loaded the same          from here on one that leaves ends this process
    dispatch    plan to every follower, then the device
    close()     followers end first

All hosts must start the same programs in the same order: each collective waits for every one of them. That holds
because a program is started by a plan and by nothing else, every follower gets every plan in order, and runs it through
the same executor. It is checked twice: at the start what the executors were built for, at each step the plan's digest.
"""

import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hmac import compare_digest
from secrets import token_bytes
from typing import Any, NoReturn

import grpc
import msgspec
import numpy as np

from serving.engine import cluster_wire
from serving.engine.cluster import differences
from serving.engine.cluster_wire import Begin, Goodbye, Hello, Keys, Loaded, Masks, Seal, Seated
from serving.engine.engine import Pending, PendingGuesses, SizedExecutor
from serving.engine.limits import ExecutorLimits
from serving.engine.plan import StepPlan, StepResult
from serving.engine.plan_wire import PlanSender
from serving.engine.wire import channel_options
from serving.errors import ConfigError, SetupError, WeftError
from serving.observability.logs import log_event, log_failure

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
KEEPALIVE_SECONDS = 5.0  # a host that is gone is missed after twice as long; a process that ends, at once
_LARGEST_FROM_STRANGERS = 64 << 10  # bytes of a message to the leader
_STRANGERS = 4  # calls beside the followers' own
_GOODBYE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Follower:
    process: int
    outgoing: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    greeted: bool = False
    loaded: Loaded | None = None


class Leader:
    """`on_lost(why)` is called once, from another thread, where a follower leaves after `gather` and before `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        processes: int,
        token: bytes,
        runs: Mapping[str, str],
        on_lost: Callable[[str], None],
        *,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
    ) -> None:
        self._host, self._port = address
        self._processes = processes
        self._token = token
        self._runs = dict(runs)
        self._on_lost = on_lost
        self._keepalive_seconds = keepalive_seconds
        self._epoch = token_bytes(cluster_wire.NONCE_BYTES)
        self._changed = threading.Condition()
        self._followers: dict[int, _Follower] = {}  # by process; under _changed
        self._begun = False
        self._closing = False
        self._sender = PlanSender()
        self._server: grpc.Server | None = None

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> None:
        """Listens. Raises SetupError where the address is not of this host, or the port is taken."""
        threads = ThreadPoolExecutor(self._processes + _STRANGERS, thread_name_prefix="follower")
        options = {
            **dict(channel_options(self._keepalive_seconds)),
            "grpc.max_receive_message_length": _LARGEST_FROM_STRANGERS,
            "grpc.so_reuseport": 0,  # two leaders on one port would share the followers out between them
        }
        server = grpc.server(
            threads, options=list(options.items()), maximum_concurrent_rpcs=self._processes + _STRANGERS
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(cluster_wire.SERVICE, self._methods()),))
        shown = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self._port = server.add_insecure_port(f"{shown}:{self._port}")
        except RuntimeError as error:
            raise SetupError(
                f"cluster: cannot listen on {shown}:{self._port}: it is no address of this host, or the port is taken",
                param="coordinator",
            ) from error
        server.start()
        self._server = server

    def gather(self, runtime_port: int, progress: Progress | None = None) -> str:
        """Waits, however long, until all followers are here, and tells them where JAX's coordinator will listen."""
        wanted = self._processes - 1
        with self._changed:
            while (here := sum(f.greeted for f in self._followers.values())) < wanted:
                _tell(progress, "waiting for hosts", here + 1, self._processes)
                self._changed.wait()
            self._begun = True
        port = runtime_port or _free_port(self._host)
        runtime = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        self._send(cluster_wire.encode(Begin(runtime)))
        return runtime

    def lead(self, executor: SizedExecutor, progress: Progress | None = None) -> "LeadingExecutor":
        """Waits until all followers have loaded. Raises ConfigError where one has not loaded the same."""
        mine = Loaded(executor.limits, executor.vocab_size, executor.programs_compiled)
        wanted = self._processes - 1
        with self._changed:
            while (count := sum(f.loaded is not None for f in self._followers.values())) < wanted:
                _tell(progress, "waiting for hosts to load", count + 1, self._processes)
                self._changed.wait()
            for follower in self._followers.values():
                if follower.loaded != mine:
                    raise ConfigError(
                        f"process {follower.process} has loaded {follower.loaded}, and the leader {mine}: hosts must "
                        "be alike; set engine.num_pages where their memory differs",
                        param="cluster",
                    )
        return LeadingExecutor(self, executor)

    def send(self, plan: StepPlan) -> None:
        """To every follower, in the order of the calls. Does not wait."""
        self._send(cluster_wire.encode(self._sender.change(plan)))

    def send_masks(self, masks: np.ndarray) -> None:
        """For the draw of the plan sent last."""
        self._send(cluster_wire.encode(Masks.of(masks)))

    def close(self) -> None:
        """Followers end first: JAX ends a process whose coordinator has gone as if it had failed."""
        with self._changed:
            self._closing = True
        self._send(cluster_wire.encode(Goodbye()))
        with self._changed:
            self._changed.wait_for(lambda: not self._followers, timeout=_GOODBYE_SECONDS)
        if self._server is not None:
            self._server.stop(grace=None)

    def _send(self, message: bytes) -> None:
        for follower in list(self._followers.values()):
            follower.outgoing.put(message)

    def _methods(self) -> dict[str, Any]:
        return {
            cluster_wire.GREET: grpc.unary_unary_rpc_method_handler(lambda _, context: self._epoch),
            cluster_wire.FOLLOW: grpc.stream_stream_rpc_method_handler(self._follow),
        }

    def _follow(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """One follower's stream, on a thread of its own. Yields what `_send` puts."""
        keys = self._keys_of(context)
        follower = self._seat(keys[0], context)
        if not context.add_callback(lambda: self._left(follower)):
            self._left(follower)  # it has gone already
        listening = (follower, messages, Seal(keys[1].of_follower), context)
        threading.Thread(target=self._listen, args=listening, name="from-follower", daemon=True).start()
        seal = Seal(keys[1].of_leader)
        yield seal.close(cluster_wire.encode(Seated()))
        while (message := follower.outgoing.get()) is not None:
            yield seal.close(message)

    def _keys_of(self, context: grpc.ServicerContext) -> tuple[int, Keys]:
        """The process that calls, and its keys. Ends the call where it does not prove that it has the token."""
        given: dict[str, Any] = dict(context.invocation_metadata() or ())
        try:
            process, nonce = int(given[cluster_wire.PROCESS_KEY]), bytes(given[cluster_wire.NONCE_KEY])
            proof = bytes(given[cluster_wire.PROOF_KEY])
        except (KeyError, ValueError, TypeError):
            _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "this port is for the followers of a weft cluster")
        keys = Keys(self._token, self._epoch, process, nonce)
        if not compare_digest(keys.proof, proof):
            log_event(log, "a caller was refused", level=logging.WARNING, peer=context.peer())
            _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "the token is another one, or the leader is a new one")
        return process, keys

    def _seat(self, process: int, context: grpc.ServicerContext) -> _Follower:
        if not 0 < process < self._processes:
            right = f"1 .. {self._processes - 1}" if self._processes > 2 else "1"
            _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"a follower's process id is {right}, not {process}")
        follower = _Follower(process)
        with self._changed:
            # Who comes back while the replica still runs, or while its own end has not been noticed, tries again.
            taken = self._begun or process in self._followers
            if not taken:
                self._followers[process] = follower
        if taken:
            _refuse(context, grpc.StatusCode.UNAVAILABLE, f"process {process} is here already")
        return follower

    def _listen(
        self, follower: _Follower, messages: Iterator[bytes], seal: Seal, context: grpc.ServicerContext
    ) -> None:
        """What the follower says, until it leaves."""
        try:
            for sealed in messages:
                self._heard(follower, cluster_wire.decode_from_follower(seal.open(sealed)), context)
        except grpc.RpcError:
            pass  # it has left: _left hears of it too
        except (WeftError, msgspec.DecodeError) as error:
            log_failure(log, "a follower is not understood", error, process=follower.process)
            context.cancel()

    def _heard(self, follower: _Follower, message: Hello | Loaded, context: grpc.ServicerContext) -> None:
        if isinstance(message, Hello) and (found := differences(self._runs, message.runs)):
            text = f"process {follower.process} is not what the leader is: {', '.join(found)}"
            log_event(log, "a host was refused", level=logging.WARNING, reason=text)
            context.set_code(grpc.StatusCode.FAILED_PRECONDITION)
            context.set_details(text)
            follower.outgoing.put(None)
            return
        with self._changed:
            if isinstance(message, Hello):
                follower.greeted = True
            else:
                follower.loaded = message
            self._changed.notify_all()

    def _left(self, follower: _Follower) -> None:
        follower.outgoing.put(None)
        with self._changed:
            if self._followers.get(follower.process) is follower:
                del self._followers[follower.process]
            lost = self._begun and not self._closing
            self._changed.notify_all()
        if lost:
            self._on_lost(f"process {follower.process} was lost")


class LeadingExecutor:
    """An executor whose every step the other hosts run too."""

    def __init__(self, leader: Leader, executor: SizedExecutor) -> None:
        self._leader = leader
        self._executor = executor

    @property
    def limits(self) -> ExecutorLimits:
        return self._executor.limits

    @property
    def vocab_size(self) -> int:
        return self._executor.vocab_size

    @property
    def programs_compiled(self) -> int:
        return self._executor.programs_compiled

    def dispatch(self, plan: StepPlan) -> Pending:
        self._leader.send(plan)
        pending = self._executor.dispatch(plan)
        if not plan.constrained:
            return pending
        if isinstance(pending, PendingGuesses):
            return _MaskedGuesses(self._leader, pending, pending)
        return _MaskedStep(self._leader, pending)


@dataclass(frozen=True, slots=True)
class _MaskedStep:
    """A step whose draw waits for masks: the other hosts need them too."""

    leader: Leader
    pending: Pending

    def draw(self, masks: np.ndarray) -> None:
        self.leader.send_masks(masks)
        self.pending.draw(masks)

    def collect(self) -> StepResult:
        return self.pending.collect()


@dataclass(frozen=True, slots=True)
class _MaskedGuesses(_MaskedStep):
    step: PendingGuesses

    def guessed(self) -> list[list[int]]:
        return self.step.guessed()


def _refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort raises")


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        return listener.getsockname()[1]


def _tell(progress: Progress | None, text: str, done: int, total: int) -> None:
    if progress is not None:
        progress(text, done, total)
