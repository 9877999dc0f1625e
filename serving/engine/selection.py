"""Who goes first: one total order over live sequences, used for the queue, for prefill budget and for pages."""

from serving.engine.sequence import Sequence


def precedence(sequence: Sequence) -> int:
    """Lower goes first: first come, first served. Unique, so that every choice is deterministic."""
    return sequence.arrival_number
