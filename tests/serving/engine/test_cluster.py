"""Leaders and followers over real sockets, around executors that only write down what they were told."""

import dataclasses
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import numpy as np
import pytest

from serving.config import ClusterConfig, Deployment, EngineConfig, MeshConfig, ModelConfig
from serving.engine import cluster_wire
from serving.engine.cluster import address_to_listen_on, cluster_token, differences, runs_here
from serving.engine.cluster_wire import Keys, Seal
from serving.engine.follower import Membership, follow, join
from serving.engine.leader import Leader
from serving.engine.limits import ExecutorLimits
from serving.engine.plan import StepPlan, StepResult
from serving.errors import ConfigError, EngineUnavailableError, SetupError
from tests.models import tiny_checkpoint
from tests.serving.engine.test_plan_wire import history

PATIENCE = 120.0  # seconds; only a broken test waits that long
TOKEN = b"a secret of this test"
RUNS = {"weft": "1", "jax": "2"}
LIMITS = ExecutorLimits(max_num_seqs=4, max_model_len=64, page_size=4, num_pages=500, token_buckets=(32,))


class WrittenDown:
    """An executor: what was dispatched, drawn and collected, in order."""

    def __init__(self, num_pages: int = LIMITS.num_pages) -> None:
        self.limits = dataclasses.replace(LIMITS, num_pages=num_pages)
        self.vocab_size = 100
        self.programs_compiled = 3
        self.calls: list[tuple[str, object]] = []

    def dispatch(self, plan: StepPlan) -> "WrittenStep":
        self.calls.append(("dispatch", plan))
        return WrittenStep(self, plan)


class WrittenStep:
    def __init__(self, executor: WrittenDown, plan: StepPlan) -> None:
        self._executor = executor
        self._plan = plan

    def draw(self, masks: np.ndarray) -> None:
        self._executor.calls.append(("draw", masks.tolist()))

    def collect(self) -> StepResult:
        self._executor.calls.append(("collect", self._plan.step))
        return StepResult(ranges=())


def begin(call: Callable[..., Any], *args: Any) -> "Future[Any]":
    """`call` on a thread that keeps no test alive when another part of it has failed."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Replica:
    """One leader on this machine, and the followers that a test starts beside it."""

    def __init__(self, processes: int, port: int = 0) -> None:
        self.lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.leader = Leader(("127.0.0.1", port), processes, TOKEN, RUNS, self.lost.put)
        self.leader.start()
        self.gathered = begin(self.leader.gather, 0)
        self.memberships: list[Membership] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.leader.port}"

    def join(self, process: int, waiting: Callable[[str], None] = lambda text: None) -> Future[Membership]:
        return begin(join, self.address, process, TOKEN, RUNS, waiting)

    def joined(self, process: int) -> Membership:
        self.memberships.append(self.join(process).result(PATIENCE))
        return self.memberships[-1]

    def close(self) -> None:
        for membership in self.memberships:
            membership.leave()
        self.leader.close()


@pytest.fixture
def replica() -> Iterator[Replica]:
    one = Replica(processes=2)
    yield one
    one.close()


def test_every_host_is_told_the_same_in_the_same_order() -> None:
    replica = Replica(processes=3)
    executors = [WrittenDown() for _ in range(3)]
    joining = [replica.join(process) for process in (2, 1)]
    members = [future.result(PATIENCE) for future in joining]
    assert {member.runtime for member in members} == {replica.gathered.result(PATIENCE)}

    def work(member: Membership, executor: WrittenDown) -> None:
        member.watch(replica.lost.put)
        member.loaded(executor)
        follow(executor, member.orders())
        member.leave()

    working = [begin(work, *pair) for pair in zip(members, executors[1:], strict=True)]
    leading = replica.leader.lead(executors[0])
    before = None
    for plan in history(4):
        pending = leading.dispatch(plan)
        if before is not None:
            before.collect()
        if plan.constrained:
            pending.draw(np.arange(4 * len(plan.constrained), dtype=np.uint32).reshape(-1, 4))
        before = pending
    replica.leader.close()
    for future in working:
        future.result(PATIENCE)
    assert sum(name == "draw" for name, _ in executors[0].calls) > 5
    assert executors[1].calls == executors[0].calls
    assert executors[2].calls == executors[0].calls
    assert replica.lost.empty()


def test_hosts_that_loaded_something_else_are_refused(replica: Replica) -> None:
    replica.joined(1).loaded(WrittenDown(num_pages=499))
    with pytest.raises(ConfigError, match=r"num_pages=499.*num_pages=500"):
        replica.leader.lead(WrittenDown())


def test_a_follower_that_is_lost_is_told_once(replica: Replica) -> None:
    replica.joined(1).leave()
    assert replica.lost.get(timeout=PATIENCE) == "process 1 was lost"
    assert replica.lost.empty()


def test_a_leader_that_is_lost_is_told() -> None:
    replica = Replica(processes=2)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    member = replica.joined(1)
    member.watch(heard.put)
    server = replica.leader._server
    assert server is not None
    server.stop(grace=None)
    assert "the leader was lost" in heard.get(timeout=PATIENCE)


def test_a_follower_may_come_back_before_the_replica_begins() -> None:
    replica = Replica(processes=3)
    stream, channel = knock(replica.address, process=1, token=TOKEN)
    stream.cancel()
    channel.close()
    joining = [replica.join(process) for process in (1, 2)]
    replica.memberships = [future.result(PATIENCE) for future in joining]
    assert replica.lost.empty()
    replica.close()


def test_a_second_follower_of_the_same_number_waits_for_the_next_replica() -> None:
    first = Replica(processes=2)
    first.joined(1)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    late = first.join(1, heard.put)
    for _ in range(4):  # it asks again and again
        heard.get(timeout=PATIENCE)
    assert not late.done()
    port = first.leader.port
    first.close()
    second = Replica(processes=2, port=port)
    second.memberships.append(late.result(PATIENCE))
    second.close()


def test_a_call_that_a_leader_never_answers_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    follow, calls = Leader._follow, []

    def unanswered_at_first(
        leader: Leader, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        calls.append(context)
        if len(calls) == 1:
            gone = threading.Event()
            context.add_callback(gone.set)
            gone.wait(PATIENCE)
            return
        yield from follow(leader, messages, context)

    monkeypatch.setattr(Leader, "_follow", unanswered_at_first)
    monkeypatch.setattr("serving.engine.follower._SEAT_SECONDS", 1.0)
    replica = Replica(processes=2)
    replica.joined(1)
    assert len(calls) > 1
    replica.close()


@pytest.mark.parametrize(
    ("process", "runs", "message"),
    [
        (1, {"weft": "1", "jax": "3"}, "jax 3 there and 2 here"),
        (2, RUNS, "process id is 1, not 2"),
    ],
)
def test_a_host_that_does_not_fit_is_told_why(replica: Replica, process: int, runs: dict, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        join(replica.address, process, TOKEN, runs, lambda text: None)
    assert not replica.gathered.done()
    replica.joined(1)


def test_a_host_with_another_token_is_refused(replica: Replica) -> None:
    with pytest.raises(SetupError, match="the token is another one"):
        join(replica.address, 1, b"another secret", RUNS, lambda text: None, sleep=lambda seconds: None)
    replica.joined(1)


def knock(address: str, process: int, token: bytes, epoch: bytes | None = None) -> tuple[grpc.Call, grpc.Channel]:
    """A stream as a follower opens it, with an epoch of the caller's."""
    channel = grpc.insecure_channel(address)
    epoch = epoch or channel.unary_unary("/weft.Cluster/Greet")(b"", timeout=PATIENCE)
    keys = Keys(token, epoch, process, b"n" * 16)
    metadata = (
        (cluster_wire.PROCESS_KEY, str(process)),
        (cluster_wire.NONCE_KEY, b"n" * 16),
        (cluster_wire.PROOF_KEY, keys.proof),
    )
    held: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    return channel.stream_stream("/weft.Cluster/Follow")(iter(held.get, None), metadata=metadata), channel


def test_a_follower_of_an_old_leader_cannot_join_the_next(replica: Replica) -> None:
    stream, channel = knock(replica.address, 1, TOKEN, epoch=b"the one before..")
    with pytest.raises(grpc.RpcError) as refused:
        next(iter(stream))
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    channel.close()


def test_a_stranger_is_told_nothing_but_the_epoch(replica: Replica) -> None:
    with grpc.insecure_channel(replica.address) as channel:
        assert len(channel.unary_unary("/weft.Cluster/Greet")(b"x" * 100, timeout=PATIENCE)) == 16
        with pytest.raises(grpc.RpcError) as refused:
            next(channel.stream_stream("/weft.Cluster/Follow")(iter([b"hello"]), timeout=PATIENCE))
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    replica.joined(1)


def test_a_port_that_is_taken_is_a_setup_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        leader = Leader(taken.getsockname()[:2], 2, TOKEN, RUNS, lambda why: None)
        with pytest.raises(SetupError, match="the port is taken"):
            leader.start()


def test_seals_open_in_order_and_nothing_else_does() -> None:
    keys = Keys(TOKEN, b"epoch", 1, b"nonce")
    sealed = list(map(Seal(keys.of_leader).close, [b"one", b"two", b"three"]))
    seal = Seal(keys.of_leader)
    assert [seal.open(sealed[0]), seal.open(sealed[1])] == [b"one", b"two"]
    others = [
        (Seal(keys.of_leader), sealed[1]),  # one was left out
        (Seal(keys.of_follower), sealed[0]),
        (Seal(Keys(TOKEN, b"epoch", 2, b"nonce").of_leader), sealed[0]),
        (Seal(Keys(TOKEN, b"later", 1, b"nonce").of_leader), sealed[0]),
        (Seal(keys.of_leader), sealed[0] + b"!"),
        (Seal(keys.of_leader), b""),
        (seal, sealed[1]),  # again
    ]
    for one, message in others:
        with pytest.raises(EngineUnavailableError, match="not sealed"):
            one.open(message)


def test_the_token_comes_from_the_environment_and_is_long_enough() -> None:
    assert cluster_token({"WEFT_CLUSTER_TOKEN": "x" * 16}) == b"x" * 16
    for environment in ({}, {"WEFT_CLUSTER_TOKEN": "x" * 15}):
        with pytest.raises(ConfigError, match="WEFT_CLUSTER_TOKEN"):
            cluster_token(environment)


def test_the_leader_listens_on_the_address_that_is_named() -> None:
    assert address_to_listen_on(ClusterConfig(processes=2, coordinator="localhost:7200", listen="127.0.0.2")) == (
        "127.0.0.2",
        7200,
    )
    assert address_to_listen_on(ClusterConfig(processes=2, coordinator="127.0.0.3:7201")) == ("127.0.0.3", 7201)


def test_hosts_compare_what_makes_their_programs_and_no_more(tmp_path) -> None:
    tiny_checkpoint.write(tmp_path)
    deployment = Deployment(name="a", model=ModelConfig(checkpoint=tmp_path), engine=EngineConfig(max_num_seqs=8))
    mine = runs_here(deployment, window=64)
    own = dataclasses.replace(deployment.engine, cpu_threads=3, compilation_cache=tmp_path)
    assert runs_here(dataclasses.replace(deployment, name="b", engine=own), window=64) == mine
    other = dataclasses.replace(deployment.engine, max_num_seqs=9)
    rounded = dataclasses.replace(deployment.model, dtype="bfloat16")
    for changed in (
        runs_here(dataclasses.replace(deployment, engine=other), window=64),
        runs_here(dataclasses.replace(deployment, model=rounded), window=64),
        runs_here(deployment, window=32),
    ):
        assert [text.split()[0] for text in differences(mine, changed)] == ["deployment"]
    with pytest.raises(ConfigError, match="pipeline must be 1 on several hosts, not 2"):
        runs_here(dataclasses.replace(deployment, mesh=MeshConfig(pipeline=2)), window=64)
    (tmp_path / "config.json").write_text("{}")
    assert [text.split()[0] for text in differences(mine, runs_here(deployment, window=64))] == ["checkpoint"]
