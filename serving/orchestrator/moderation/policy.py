"""A policy, and what it makes of findings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from serving.orchestrator.moderation.judges.judge import Direction, Finding
from serving.settings.moderation import ModerationConfig, PolicyConfig, RuleConfig

Action = Literal["block", "cut", "route", "annotate"]
UNJUDGED = "unjudged"  # in a category's place, where a judge that must not fail has failed
REVIEW = "review"  # likewise, where a person will look at the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`fired` are the findings that reached a threshold, with what is to be done."""

    fired: tuple[tuple[Action, Finding], ...] = ()
    failed: bool = False  # a judge that must not fail has failed
    tells_review: bool = False  # a record waits for a person, and whoever asked is to know it

    @property
    def stops(self) -> bool:
        return self.failed or any(action in ("block", "cut") for action, _ in self.fired)

    @property
    def clean_until(self) -> int:
        """The passage's characters before everything that stops it; 0 where that is not known."""
        if self.failed:
            return 0
        starts = (finding.start or 0 for action, finding in self.fired if action in ("block", "cut"))
        return min(starts, default=0)

    @property
    def flags(self) -> tuple[tuple[str, float], ...]:
        """Category and score, of what is not only for a person to see; of that, only that it is."""
        found = {UNJUDGED: 1.0} if self.failed else {}
        if self.tells_review:
            found[REVIEW] = 1.0
        for action, finding in self.fired:
            if action != "route":
                found[finding.category] = max(finding.score, found.get(finding.category, 0.0))
        return tuple(sorted(found.items()))

    def of(self, action: Action) -> list[Finding]:
        return [finding for wanted, finding in self.fired if wanted == action]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    rules: tuple[RuleConfig, ...]
    judge_every: int  # tokens of an answer
    hold_back: int  # tokens, at most
    lead: int  # tokens
    roles: frozenset[str]
    tells_review: bool

    @classmethod
    def of(cls, config: PolicyConfig, name: str) -> "Policy":
        return cls(
            name=name,
            rules=config.rules,
            judge_every=config.judge_every_tokens,
            hold_back=config.hold_back_tokens,
            lead=config.lead_tokens,
            roles=frozenset(config.input_roles),
            tells_review=config.tells_review,
        )

    def with_added(self, other: "Policy") -> "Policy":
        """Both at once: what either forbids is forbidden."""
        every = min(self.judge_every, other.judge_every)
        return Policy(
            name=f"{self.name}+{other.name}",
            rules=self.rules + other.rules,
            judge_every=every,
            hold_back=max(self.hold_back, other.hold_back),
            lead=min(self.lead, other.lead),
            roles=self.roles | other.roles,
            tells_review=self.tells_review and other.tells_review,
        )

    @property
    def judges_input(self) -> bool:
        return any(rule.input is not None for rule in self.rules)

    @property
    def judges_output(self) -> bool:
        return any(rule.output is not None for rule in self.rules)

    def verdict(self, findings: Sequence[Finding], direction: Direction, *, failed: bool = False) -> Verdict:
        fired: list[tuple[Action, Finding]] = [
            (action, finding)
            for rule in self.rules
            for finding in findings
            if (action := rule.input if direction == "input" else rule.output) is not None
            and finding.category == rule.category
            and finding.score >= rule.threshold
        ]
        return Verdict(fired=tuple(dict.fromkeys(fired)), failed=failed)

    def threshold(self, category: str) -> float:
        """From which score on /v1/moderations calls a text flagged."""
        return min((rule.threshold for rule in self.rules if rule.category == category), default=0.5)


class Policies:
    """Whose policy is whose."""

    def __init__(self, config: ModerationConfig) -> None:
        self._config = config
        self._named = {name: Policy.of(policy, name) for name, policy in config.policies.items()}
        self._of_tenants = {name: self._resolved(name) for name in config.tenants}
        self._of_others = self._resolved(None)

    def of(self, tenant: str) -> Policy | None:
        """None: this tenant is not moderated."""
        return self._of_tenants.get(tenant, self._of_others)

    @property
    def default(self) -> Policy | None:
        return self._of_others

    def _resolved(self, tenant: str | None) -> Policy | None:
        config = self._config
        own = None if tenant is None else config.tenants[tenant]
        name = config.policy if own is None or own.policy is None else own.policy
        place = config.jurisdiction if own is None or own.jurisdiction is None else own.jurisdiction
        names = [name, None if place is None else config.jurisdictions[place]]
        return _sum(self._named[name] for name in dict.fromkeys(names) if name is not None)


def _sum(policies: Iterable[Policy]) -> Policy | None:
    total: Policy | None = None
    for policy in policies:
        total = policy if total is None else total.with_added(policy)
    return total
