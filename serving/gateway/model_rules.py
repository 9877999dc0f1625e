"""Which rule a request meets, from facts alone: the same facts always find the same model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.gateway.ladder import Rung
from serving.gateway.queue import Load
from serving.settings.routing import RoutingRule, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What rules may ask. By target: only where a rule for it asks, and None where there is no answer."""

    tier: str
    task: Task
    prompt_tokens: Mapping[str, int | None] = field(default_factory=dict)  # None: the target cannot read the prompt
    load: Mapping[str, Load | None] = field(default_factory=dict)  # None: the target's engine is away


def first_match(rules: Sequence[RoutingRule], facts: RequestFacts) -> RoutingRule:
    """The first rule that holds. The last has no condition, as `check_routing` has made sure."""
    return next(rule for rule in rules if _holds(rule, facts))


def _holds(rule: RoutingRule, facts: RequestFacts) -> bool:
    if rule.tiers and facts.tier not in rule.tiers:
        return False
    if rule.tasks and facts.task not in rule.tasks:
        return False
    return _length_holds(rule, facts) and _load_holds(rule, facts)


def _length_holds(rule: RoutingRule, facts: RequestFacts) -> bool:
    if not rule.counts_tokens:
        return True
    tokens = facts.prompt_tokens.get(rule.target)
    if tokens is None:
        return False
    too_short = rule.min_prompt_tokens is not None and tokens < rule.min_prompt_tokens
    too_long = rule.max_prompt_tokens is not None and tokens > rule.max_prompt_tokens
    return not (too_short or too_long)


def _load_holds(rule: RoutingRule, facts: RequestFacts) -> bool:
    if not rule.asks_load:
        return True
    load = facts.load.get(rule.target)
    if load is None:
        return False
    if rule.max_wait_seconds is not None and load.wait_seconds > rule.max_wait_seconds:
        return False
    if rule.max_waiting is not None and load.waiting > rule.max_waiting:
        return False
    return rule.below is None or load.rung < Rung[rule.below.upper()]
