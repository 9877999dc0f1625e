"""Whether pages of a lower tier are worth bringing back: where copying them takes no longer than computing them.

Copies are measured by being made, and a slow moment of the machine must not end them for good: after so many refusals
in a row, the next sequence that asks has its pages copied whatever was measured.
"""

TRIAL_AFTER = 8


def is_worth(copy_seconds: float, compute_seconds: float, refused: int) -> bool:
    """Both at the best rate measured; 0 where nothing was measured yet, and then the answer is yes. `refused`: how many
    times in a row it was no."""
    return copy_seconds <= compute_seconds or compute_seconds == 0.0 or refused >= TRIAL_AFTER
