"""What a deployment says of moderation: judges, policies, and whose they are (docs/moderation.md)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from serving.errors import ConfigError

JudgeKind = Literal["rules", "similarity", "head", "guard"]
OnFailure = Literal["open", "closed"]
Role = Literal["system", "developer", "user", "assistant", "tool"]
InputAction = Literal["block", "route", "annotate"]
OutputAction = Literal["cut", "route", "annotate"]

# The first are OpenAI's, then one of weft's own, then those that only a guard model tells apart.
CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
    "jailbreak",
    "defamation",
    "specialized-advice",
    "privacy",
    "intellectual-property",
    "elections",
    "code-abuse",
)
MODERATION_MODEL = "weft-moderation"  # that clients name at /v1/moderations
ENCODER_KINDS = ("similarity", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    kind: JudgeKind
    path: Path | None = None  # rules: patterns beside the built-in ones; similarity: examples; head: its weights
    url: str | None = None  # guard: the server's base, as http://guard:8000
    model: str | None = None  # guard: its name there
    on_failure: OnFailure = "closed"  # a judge that fails: closed refuses or cuts, open lets through; both are counted
    timeout_seconds: float = 5.0  # a judge that takes longer has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    category: str
    threshold: float = 0.5  # the score from which on the actions are taken
    input: InputAction | None = None
    output: OutputAction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    rules: tuple[RuleConfig, ...] = ()
    judge_every_tokens: int = 8  # of an answer
    hold_back_tokens: int = 24  # of an answer, that are generated and not shown, at most
    lead_tokens: int = 0  # shown before they are judged, at most; above 0 nothing is held back until so many are
    input_roles: tuple[Role, ...] = ("user", "assistant", "tool")  # whose messages are judged
    tells_review: bool = True  # clients are told that a person will look at what is routed


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantModeration:
    policy: str | None = None  # None: the deployment's
    jurisdiction: str | None = None  # None: the deployment's


@dataclass(frozen=True, slots=True, kw_only=True)
class ModerationConfig:
    judges: Mapping[str, JudgeConfig] = field(default_factory=dict)
    policies: Mapping[str, PolicyConfig] = field(default_factory=dict)
    policy: str | None = None  # of tenants that have none of their own; None: they are not moderated
    jurisdiction: str | None = None  # of tenants that have none of their own
    jurisdictions: Mapping[str, str] = field(default_factory=dict)  # the policy that is added to a tenant's own there
    tenants: Mapping[str, TenantModeration] = field(default_factory=dict)
    review: Path | None = None  # a database: what is routed to a person
    review_retain_days: float = 30.0  # after it was written, looked at or not; 0: until it is erased
    canary_seconds: float | None = None  # between benign texts that the judges are tried on; None: never

    @property
    def review_retain_seconds(self) -> float | None:
        return self.review_retain_days * 86400 if self.review_retain_days else None


def check_moderation(config: ModerationConfig, where: str, *, has_encoder: bool) -> None:
    """Raises ConfigError for names that lead nowhere, and for what cannot hold together."""
    for key, message in _faults(config, has_encoder):
        raise ConfigError(f"{where}: moderation.{key} {message}", param=f"moderation.{key}")


def _faults(config: ModerationConfig, has_encoder: bool) -> Iterator[tuple[str, str]]:
    if not config.judges:
        yield "judges", 'must name at least one judge, such as [moderation.judges.rules] with kind = "rules"'
    for name, judge in config.judges.items():
        yield from _judge_faults(f"judges.{name}", judge, has_encoder)
    for name, policy in config.policies.items():
        yield from _policy_faults(f"policies.{name}", policy, config)
    named = [("policy", config.policy)]
    named += [(f"tenants.{name}.policy", tenant.policy) for name, tenant in config.tenants.items()]
    named += [(f"jurisdictions.{name}", policy) for name, policy in config.jurisdictions.items()]
    for key, policy in named:
        if policy is not None and policy not in config.policies:
            yield key, f"must be one of moderation.policies ({', '.join(config.policies) or 'none'}), not {policy!r}"
    places = [("jurisdiction", config.jurisdiction)]
    places += [(f"tenants.{name}.jurisdiction", tenant.jurisdiction) for name, tenant in config.tenants.items()]
    for key, place in places:
        if place is not None and place not in config.jurisdictions:
            known = ", ".join(config.jurisdictions) or "none"
            yield key, f"must be one of moderation.jurisdictions ({known}), not {place!r}"
    if not 0 <= config.review_retain_days <= 36500:
        yield "review_retain_days", f"must be in 0 .. 36500, not {config.review_retain_days}"
    if config.canary_seconds is not None and not 1 <= config.canary_seconds <= 86400:
        yield "canary_seconds", f"must be in 1 .. 86400, not {config.canary_seconds}"


def _judge_faults(key: str, judge: JudgeConfig, has_encoder: bool) -> Iterator[tuple[str, str]]:
    needed = {"similarity": ("path",), "head": ("path",), "guard": ("url", "model"), "rules": ()}[judge.kind]
    allowed = {*needed, "path"} if judge.kind == "rules" else set(needed)
    for name in ("path", "url", "model"):
        given = getattr(judge, name) is not None
        if name in needed and not given:
            yield f"{key}.{name}", f"must be given for a judge of kind {judge.kind!r}"
        if given and name not in allowed:
            yield f"{key}.{name}", f"is not for a judge of kind {judge.kind!r}"
    if judge.kind in ENCODER_KINDS and not has_encoder:
        yield key, "needs the encoder of an [embeddings] table"
    if judge.url is not None and not judge.url.startswith(("http://", "https://")):
        yield f"{key}.url", f"must begin with http:// or https://, not {judge.url!r}"
    if not 0 < judge.timeout_seconds <= 600:
        yield f"{key}.timeout_seconds", f"must be above 0 and at most 600, not {judge.timeout_seconds}"


def _policy_faults(key: str, policy: PolicyConfig, config: ModerationConfig) -> Iterator[tuple[str, str]]:
    for at, rule in enumerate(policy.rules):
        if rule.category not in CATEGORIES:
            yield f"{key}.rules[{at}].category", f"must be one of {', '.join(CATEGORIES)}, not {rule.category!r}"
        if not 0 < rule.threshold <= 1:
            yield f"{key}.rules[{at}].threshold", f"must be above 0 and at most 1, not {rule.threshold}"
        if rule.input is None and rule.output is None:
            yield f"{key}.rules[{at}]", "must have an action for input or for output"
        if "route" in (rule.input, rule.output) and config.review is None:
            yield f"{key}.rules[{at}]", "routes to a person, and needs moderation.review"
    if not 1 <= policy.judge_every_tokens <= 1024:
        yield f"{key}.judge_every_tokens", f"must be in 1 .. 1024, not {policy.judge_every_tokens}"
    if not 2 * policy.judge_every_tokens <= policy.hold_back_tokens <= 4096:
        least = f"twice judge_every_tokens ({2 * policy.judge_every_tokens})"
        yield f"{key}.hold_back_tokens", f"must be at least {least} and at most 4096, not {policy.hold_back_tokens}"
    if not 0 <= policy.lead_tokens <= 4096:
        yield f"{key}.lead_tokens", f"must be in 0 .. 4096, not {policy.lead_tokens}"
