"""Which model answers: by the name that a client sends, by rules, and in place of another (docs/models.md)."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from serving.errors import ConfigError

Task = Literal["text", "chat", "tools", "json"]
Step = Literal["shed_batch", "cap_output", "fallback", "refuse"]

_COUNTS = ("min_prompt_tokens", "max_prompt_tokens", "max_waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """Conditions that are left out are not asked for. Those of load are of the target, and one that is away meets
    none."""

    model: str  # the name that clients send
    target: str  # the model that answers
    tiers: tuple[str, ...] = ()  # of the caller
    tasks: tuple[Task, ...] = ()  # tools: some are offered; json: else, the answer has a form; chat: else, messages
    min_prompt_tokens: int | None = None  # as the target counts them
    max_prompt_tokens: int | None = None
    max_wait_seconds: float | None = None  # predicted to the first token
    max_waiting: int | None = None  # requests without a first token
    below: Step | None = None  # the step of its ladder

    @property
    def is_unconditional(self) -> bool:
        return self == RoutingRule(model=self.model, target=self.target)

    @property
    def counts_tokens(self) -> bool:
        return self.min_prompt_tokens is not None or self.max_prompt_tokens is not None

    @property
    def asks_load(self) -> bool:
        return self.max_wait_seconds is not None or self.max_waiting is not None or self.below is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    rules: tuple[RoutingRule, ...] = ()  # the first that holds, of those for a name
    fallback: Mapping[str, str] = field(default_factory=dict)  # a model: the smaller one that stands in for it
    patience_seconds: float = 0.0  # how long a request waits for an engine that is away before another model answers

    @property
    def names(self) -> tuple[str, ...]:
        """Those that stand for whatever model a rule finds."""
        return tuple(dict.fromkeys(rule.model for rule in self.rules))

    def rules_of(self, name: str) -> tuple[RoutingRule, ...]:
        return tuple(rule for rule in self.rules if rule.model == name)


def check_routing(
    routing: RoutingConfig, models: Collection[str], tiers: Collection[str], taken: Collection[str], where: str
) -> None:
    """`models` are those that are served, `taken` names that mean something else. Raises ConfigError."""
    for number, rule in enumerate(routing.rules):
        key = f"routing.rules[{number}]"
        if not rule.model or rule.model in models or rule.model in taken:
            raise _fault(where, f"{key}.model", f"must be a name of its own, not {rule.model!r}")
        _check_target(f"{key}.target", rule.target, models, where)
        for tier in rule.tiers:
            if tier not in tiers:
                raise _fault(where, f"{key}.tiers", f"must be some of {', '.join(sorted(tiers))}, not {tier!r}")
        for name in _COUNTS:
            value = getattr(rule, name)
            if value is not None and value < 0:
                raise _fault(where, f"{key}.{name}", f"must be at least 0, not {value}")
        if rule.max_wait_seconds is not None and not 0 < rule.max_wait_seconds < math.inf:
            raise _fault(where, f"{key}.max_wait_seconds", f"must be above 0 and finite, not {rule.max_wait_seconds}")
    for name in routing.names:
        *before, last = routing.rules_of(name)
        if not last.is_unconditional or any(rule.is_unconditional for rule in before):
            raise _fault(
                where,
                "routing.rules",
                f"for {name!r} must end with its one rule without a condition, for all the rest",
            )
    for name, smaller in routing.fallback.items():
        _check_target(f"routing.fallback.{name}", name, models, where)
        _check_target(f"routing.fallback.{name}", smaller, models, where)
        chain = [name]
        while (after := routing.fallback.get(chain[-1])) is not None:
            if after in chain:
                raise _fault(where, f"routing.fallback.{name}", f"leads back to {after!r}")
            chain.append(after)
    if not 0 <= routing.patience_seconds <= 600:
        raise _fault(where, "routing.patience_seconds", f"must be in 0 .. 600, not {routing.patience_seconds}")


def _check_target(key: str, name: str, models: Collection[str], where: str) -> None:
    if name not in models:
        raise _fault(where, key, f"must be one of the models {', '.join(models)}, not {name!r}")


def _fault(where: str, key: str, message: str) -> ConfigError:
    return ConfigError(f"{where}: {key} {message}", param=key)
