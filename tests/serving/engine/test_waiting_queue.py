"""Whose turn it is, among classes, tenants and arrivals."""

import pytest

from serving.engine.policies.order import BACKGROUND_RANKS, ELDER, FOREGROUND_RANKS, RANKS
from serving.engine.request import GenerateRequest, Priority, SamplingParams
from serving.engine.sequence import Sequence
from serving.engine.waiting_queue import WaitingQueue


class _Queue:
    def __init__(self) -> None:
        self.queue = WaitingQueue(lambda sequence: 0)
        self.arrivals = 0

    def add(self, tenant: str = "", priority: Priority = Priority.STANDARD) -> Sequence:
        request = GenerateRequest(
            request_id=f"{tenant}-{self.arrivals}",
            prompt_token_ids=(1,),
            sampling=SamplingParams(),
            tenant=tenant,
            priority=priority,
        )
        sequence = Sequence(
            request,
            arrival_number=self.arrivals,
            arrival_time=0.0,
            max_model_len=9,
            page_size=4,
            namespace="",
            rank=RANKS[priority],
            account=self.queue.account(request),
        )
        self.arrivals += 1
        self.queue.add(sequence)
        return sequence

    def drain(self, charge: float = 1.0) -> list[Sequence]:
        """All of the foreground in the order of their turns, each charged when it is admitted."""
        order: list[Sequence] = []
        while (sequence := self.queue.next(FOREGROUND_RANKS, [])) is not None:
            self.queue.admit(sequence)
            sequence.account.charged += charge
            order.append(sequence)
        return order


def test_one_tenant_is_served_by_arrival() -> None:
    waiting = _Queue()
    sequences = [waiting.add() for _ in range(5)]
    waiting.queue.remove(sequences[1])
    waiting.queue.add(sequences[1])  # as after a preemption
    assert waiting.drain() == sequences


def test_an_elder_is_not_lifted_to_what_elders_of_other_classes_were_served() -> None:
    """It would be the last of its own class to be served from then on."""
    waiting = _Queue()
    much = waiting.add("much")
    much.account.charged = 1_000.0
    little = waiting.add("little", Priority.BATCH)
    for elder in (much, little):
        waiting.queue.remove(elder)
        elder.rank = ELDER
        waiting.queue.add(elder)
        waiting.queue.admit(elder)
    assert little.account.counter == 0.0


def test_tenants_take_turns_by_what_they_were_served() -> None:
    waiting = _Queue()
    a = [waiting.add("a") for _ in range(4)]
    b = [waiting.add("b") for _ in range(2)]
    assert waiting.drain() == [a[0], b[0], a[1], b[1], a[2], a[3]]


def test_classes_go_in_order_and_the_elder_before_all() -> None:
    waiting = _Queue()
    batch, standard, interactive = (waiting.add(priority=priority) for priority in reversed(Priority))
    assert [waiting.queue.count(priority) for priority in Priority] == [1, 1, 1]
    assert waiting.queue.next(BACKGROUND_RANKS, []) is batch
    waiting.queue.remove(batch)
    batch.rank = ELDER
    waiting.queue.add(batch)
    assert not waiting.queue.any_of(BACKGROUND_RANKS)
    assert waiting.drain() == [batch, interactive, standard]
    assert len(waiting.queue) == 0


def test_those_who_are_skipped_let_others_pass_for_now() -> None:
    waiting = _Queue()
    first, second, other = waiting.add("a"), waiting.add("a"), waiting.add("b")
    assert waiting.queue.next(FOREGROUND_RANKS, [first]) is second
    assert waiting.queue.next(FOREGROUND_RANKS, [first, second]) is other
    assert waiting.queue.next(FOREGROUND_RANKS, [first, second, other]) is None
    assert waiting.queue.next(FOREGROUND_RANKS, []) is first


def test_who_does_not_wait_cannot_be_taken_out() -> None:
    waiting = _Queue()
    sequence = waiting.add()
    waiting.queue.remove(sequence)
    with pytest.raises(ValueError, match="does not wait"):
        waiting.queue.remove(sequence)
