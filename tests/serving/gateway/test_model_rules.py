"""Rules over random facts: the choice is one of the rules, depends on nothing else, and is the first that holds."""

from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.ladder import Rung
from serving.gateway.model_rules import RequestFacts, first_match
from serving.gateway.queue import Load
from serving.settings.routing import RoutingRule

TARGETS = ("big", "middle", "small")
TIERS = ("gold", "default")
TASKS = ("text", "chat", "tools", "json")
STEPS = ("shed_batch", "cap_output", "fallback", "refuse")

loads = st.builds(
    Load, wait_seconds=st.floats(0, 20), waiting=st.integers(0, 20), rung=st.sampled_from(Rung), is_over=st.booleans()
)
rules = st.builds(
    RoutingRule,
    model=st.just("auto"),
    target=st.sampled_from(TARGETS),
    tiers=st.lists(st.sampled_from(TIERS), max_size=2).map(tuple),
    tasks=st.lists(st.sampled_from(TASKS), max_size=2).map(tuple),
    min_prompt_tokens=st.none() | st.integers(0, 30),
    max_prompt_tokens=st.none() | st.integers(0, 30),
    max_wait_seconds=st.none() | st.floats(0.1, 20),
    max_waiting=st.none() | st.integers(0, 20),
    below=st.none() | st.sampled_from(STEPS),
)
facts = st.builds(
    RequestFacts,
    tier=st.sampled_from(TIERS),
    task=st.sampled_from(TASKS),
    prompt_tokens=st.fixed_dictionaries({name: st.none() | st.integers(0, 40) for name in TARGETS}),
    load=st.fixed_dictionaries({name: st.none() | loads for name in TARGETS}),
)
LAST = RoutingRule(model="auto", target="big")


@given(st.lists(rules, max_size=5), facts)
def test_the_first_rule_that_holds_wins_and_rules_after_it_change_nothing(
    given: list[RoutingRule], asked: RequestFacts
):
    found = first_match([*given, LAST], asked)
    alone = [rule for rule in given if first_match([rule, LAST], asked) is rule]  # those that hold by themselves
    assert found is (alone[0] if alone else LAST)
    assert first_match([*given, LAST, *given], asked) is found


@given(rules, facts)
def test_a_rule_holds_where_all_of_its_conditions_do(rule: RoutingRule, asked: RequestFacts) -> None:
    tokens, load = asked.prompt_tokens[rule.target], asked.load[rule.target]
    conditions = [
        not rule.tiers or asked.tier in rule.tiers,
        not rule.tasks or asked.task in rule.tasks,
        rule.min_prompt_tokens is None or (tokens is not None and tokens >= rule.min_prompt_tokens),
        rule.max_prompt_tokens is None or (tokens is not None and tokens <= rule.max_prompt_tokens),
        rule.max_wait_seconds is None or (load is not None and load.wait_seconds <= rule.max_wait_seconds),
        rule.max_waiting is None or (load is not None and load.waiting <= rule.max_waiting),
        rule.below is None or (load is not None and load.rung < Rung[rule.below.upper()]),
    ]
    assert (first_match([rule, LAST], asked) is rule) == all(conditions)
