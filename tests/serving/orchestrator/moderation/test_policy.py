"""What a policy makes of findings, and whose it is."""

from pathlib import Path
from typing import Any

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError
from serving.orchestrator.moderation.judges.judge import Finding
from serving.orchestrator.moderation.policy import Policies, Policy
from serving.settings.moderation import ModerationConfig, PolicyConfig, RuleConfig, TenantModeration

STRICT = PolicyConfig(
    rules=(
        RuleConfig(category="violence", threshold=0.8, input="block", output="cut"),
        RuleConfig(category="violence", threshold=0.5, input="annotate"),
        RuleConfig(category="hate", input="route"),
    ),
    judge_every_tokens=16,
    hold_back_tokens=32,
    input_roles=("user",),
)
LAX = PolicyConfig(rules=(RuleConfig(category="hate", output="cut"),), lead_tokens=4, hold_back_tokens=64)
DEPLOYMENT = """
name = "x"
[model]
checkpoint = "c"
[moderation]
{}
[moderation.judges.rules]
kind = "rules"
"""


def test_a_score_reaches_each_threshold_on_its_own() -> None:
    policy = Policy.of(STRICT, "strict")
    for score, actions in ((0.4, []), (0.5, ["annotate"]), (0.8, ["block", "annotate"])):
        verdict = policy.verdict([Finding("violence", score)], "input")
        assert [action for action, _ in verdict.fired] == actions
        assert verdict.stops is ("block" in actions)
    assert policy.threshold("violence") == 0.5
    assert policy.threshold("sexual") == 0.5


def test_what_is_routed_is_not_told_to_the_client() -> None:
    verdict = Policy.of(STRICT, "strict").verdict([Finding("hate", 0.9), Finding("violence", 0.6)], "input")
    assert verdict.flags == (("violence", 0.6),)
    assert not verdict.stops


def test_the_clean_part_ends_at_the_first_place_unless_one_is_not_known() -> None:
    policy = Policy.of(LAX, "lax")
    assert policy.verdict([Finding("hate", 0.9, 30), Finding("hate", 0.6, 12)], "output").clean_until == 12
    assert policy.verdict([Finding("hate", 0.9, 30), Finding("hate", 0.6)], "output").clean_until == 0
    assert policy.verdict([Finding("hate", 0.9, 30)], "output", failed=True).clean_until == 0


def test_a_jurisdiction_adds_to_a_tenants_policy_and_takes_nothing_away() -> None:
    config = ModerationConfig(
        policies={"strict": STRICT, "lax": LAX},
        policy="lax",
        jurisdictions={"here": "strict"},
        tenants={"a": TenantModeration(jurisdiction="here"), "b": TenantModeration(policy="strict")},
    )
    policies = Policies(config)
    both, own, others = policies.of("a"), policies.of("b"), policies.of("c")
    assert both is not None
    assert own is not None
    assert others is not None
    assert both.rules == LAX.rules + STRICT.rules
    assert (both.judge_every, both.hold_back, both.lead) == (8, 64, 0)
    assert both.roles == {"user", "assistant", "tool"}
    assert (own.name, others.name) == ("strict", "lax")
    assert Policies(ModerationConfig()).of("a") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('policy = "none"', "policy must be one of moderation.policies"),
        ('jurisdiction = "here"', "jurisdiction must be one of moderation.jurisdictions"),
        ("[moderation.jurisdictions]\nhere = 'none'", "jurisdictions.here must be one of"),
        ("[moderation.tenants.a]\npolicy = 'none'", "tenants.a.policy must be one of"),
        ('policies = {p = {rules = [{category = "rude", input = "block"}]}}', "category must be one of"),
        ('policies = {p = {rules = [{category = "hate", input = "cut"}]}}', "input must be one of 'block'"),
        ('policies = {p = {rules = [{category = "hate"}]}}', "must have an action"),
        ('policies = {p = {rules = [{category = "hate", output = "route"}]}}', "needs moderation.review"),
        ('policies = {p = {rules = [{category = "hate", output = "cut", threshold = 0}]}}', "threshold must be"),
        ("policies = {p = {judge_every_tokens = 8, hold_back_tokens = 15}}", "hold_back_tokens must be at least"),
        ('policies = {p = {input_roles = ["robot"]}}', r"input_roles\[0\] must be one of"),
        ("review_retain_days = -1", "review_retain_days must be in"),
        ("canary_seconds = 0.5", "canary_seconds must be in"),
        ('[moderation.judges.head]\nkind = "head"\npath = "h"', r"needs the encoder of an \[embeddings\] table"),
        ('[moderation.judges.guard]\nkind = "guard"\nurl = "guard:80"\nmodel = "g"', "must begin with http"),
        ('[moderation.judges.guard]\nkind = "guard"\nmodel = "g"', "url must be given"),
        ('[moderation.judges.other]\nkind = "rules"\nurl = "http://x"', "is not for a judge of kind 'rules'"),
        ('[moderation.judges.other]\nkind = "rules"\ntimeout_seconds = 0', "timeout_seconds must be"),
    ],
)
def test_a_table_that_cannot_hold_is_refused_with_what_would_be_right(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "d.toml"
    path.write_text(DEPLOYMENT.format(text), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_deployment(path)


def test_a_deployments_words_become_its_policies(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    rule = '{category = "hate", threshold = 0.7, input = "block", output = "cut"}'
    path.write_text(DEPLOYMENT.format(f'policy = "p"\npolicies = {{p = {{rules = [{rule}]}}}}'), encoding="utf-8")
    config: Any = load_deployment(path).moderation
    assert config.review_retain_seconds == 30 * 86400
    assert ModerationConfig(review_retain_days=0).review_retain_seconds is None
    assert config.policies["p"].rules == (RuleConfig(category="hate", threshold=0.7, input="block", output="cut"),)
    assert (config.judges["rules"].kind, config.judges["rules"].on_failure) == ("rules", "closed")
