"""How many tokens a step may have while somebody watches tokens come: as many as fit the target between two of them.

Programs are compiled for a few step sizes (token buckets), so the choice is a bucket: from the smallest one that
advances a prompt at all, up, while the next one's measured seconds are within the target. A bucket that was not
measured for a while is tried again, one rung at a time: an experiment that fails costs one step of at most the next
bucket's size, once in `StepCost`'s memory of STALE_AFTER steps, which is less than one in a hundred.
"""

from itertools import pairwise

from serving.engine.step_cost import StepCost

LEAST_CHUNK = 16  # tokens of prompt in each step, whatever the target: a prompt must end some day


def step_tokens(cost: StepCost, target_seconds: float, num_decodes: int, limit: int) -> int:
    """The most tokens of a step with `num_decodes` decoding sequences; at most `limit`, which is a bucket."""
    buckets = cost.buckets_from(min(num_decodes + LEAST_CHUNK, limit))
    chosen = buckets[0]
    for bucket, larger in pairwise(buckets):
        seconds, next_seconds = cost.seconds(bucket), cost.seconds(larger)
        if next_seconds is None:
            # Not before the rung below is known to be within the target.
            return larger if seconds is not None and seconds <= target_seconds else chosen
        if next_seconds > target_seconds:
            break
        chosen = larger
    return chosen
