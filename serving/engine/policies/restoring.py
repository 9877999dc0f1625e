"""Whether pages of a lower tier are worth bringing back: where copying them takes no longer than computing them."""


def is_worth(copy_seconds: float, compute_seconds: float) -> bool:
    """Both at the best rate measured; what was not measured yet is 0, and then the answer is yes: the first copies
    are what measures them."""
    return copy_seconds <= compute_seconds or compute_seconds == 0.0
