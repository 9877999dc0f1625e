"""Pages are brought back where that is faster than computing them, and a slow moment does not end it for good."""

import pytest

from serving.engine.policies.restoring import TRIAL_AFTER, is_worth


@pytest.mark.parametrize(
    ("copy", "compute", "refused", "worth"),
    [
        (1.0, 2.0, 0, True),
        (2.0, 1.0, 0, False),
        (2.0, 1.0, TRIAL_AFTER - 1, False),
        (2.0, 1.0, TRIAL_AFTER, True),
        (0.0, 1.0, 0, True),  # copies were not measured
        (2.0, 0.0, 0, True),  # nor steps
    ],
)
def test_pages_are_copied_where_that_is_no_slower(copy: float, compute: float, refused: int, worth: bool) -> None:
    assert is_worth(copy, compute, refused) is worth
