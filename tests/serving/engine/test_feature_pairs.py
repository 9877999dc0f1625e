"""Features of the engine beside each other: whatever is on, the tokens are those of a plain engine.

Random sets in which every two features meet, over the programs that other tests have compiled.
`python -m scripts.check_feature_pairs` checks each pair alone, and those that need other programs too.
"""

import pytest

from scripts.check_feature_pairs.features import BY_NAME, FEATURES, Feature
from scripts.check_feature_pairs.laboratory import Laboratory
from scripts.check_feature_pairs.table import PairCheck, covering_sets
from tests.fakes.tiny_model import tiny_executor

OTHER_PROGRAMS = ("n-gram", "draft model", "EAGLE-3 head", "adapter", "int8 pages", "mesh of 4")
HERE = tuple(feature for feature in FEATURES if feature.name not in OTHER_PROGRAMS)
SETS = covering_sets(HERE, size=5, seed=3)


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> PairCheck:
    return PairCheck(Laboratory(tmp_path_factory.mktemp("laboratory"), tiny_executor()), seed=1)


@pytest.mark.parametrize("features", SETS, ids=lambda chosen: " + ".join(feature.name for feature in chosen))
async def test_together_they_give_the_tokens_of_a_plain_engine(check: PairCheck, features: tuple[Feature, ...]) -> None:
    found = await check.check(features)
    assert found.verdict != "other", found.detail


@pytest.mark.parametrize(
    "names",
    [("prefix hit", "chunks"), ("host tier", "preemption"), ("disk tier",), ("logprobs", "multi-step")],
    ids=" + ".join,
)
async def test_each_is_seen_at_work(check: PairCheck, names: tuple[str, ...]) -> None:
    found = await check.check(tuple(BY_NAME[name] for name in names))
    assert found.verdict != "other", found.detail
    assert found.idle == ()


def test_every_two_features_meet() -> None:
    met = {frozenset((a.name, b.name)) for chosen in SETS for a in chosen for b in chosen if a is not b}
    assert len(met) == len(HERE) * (len(HERE) - 1) // 2
