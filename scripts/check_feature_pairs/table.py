"""Runs pairs of features and says of each whether its tokens are those of the plain engine."""

import itertools
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from scripts.check_feature_pairs.features import APART, Feature, Setting, plain_setting, setting_of
from scripts.check_feature_pairs.laboratory import ROUNDING, Laboratory, workload
from serving.errors import ConfigError

Verdict = Literal["same", "tie", "other", "refused"]
Pair = tuple[Feature, ...]  # two, or one alone; in a test more


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    pair: Pair
    verdict: Verdict
    idle: tuple[str, ...]  # features of the pair that nothing showed at work
    detail: str = ""  # of the first token that is another one


class PairCheck:
    def __init__(self, laboratory: Laboratory, seed: int) -> None:
        self._laboratory = laboratory
        self._seed = seed
        self._expected: dict[tuple[object, ...], dict[str, list[int]]] = {}

    async def check(self, pair: Pair) -> Checked:
        """Raises what an engine raises, but for a ConfigError: what is not offered together is refused."""
        setting, plain = setting_of(pair), plain_setting(pair)
        try:
            expected = await self._tokens_of_plain(pair, plain)
            outcome = await self._laboratory.run(setting, workload(setting, self._seed))
        except ConfigError as error:
            return Checked(pair=pair, verdict="refused", idle=(), detail=error.message)
        idle = tuple(feature.name for feature in pair if not feature.at_work(outcome.evidence))
        verdicts = [
            await self._compared(plain, name, expected[name], tokens) for name, tokens in outcome.tokens.items()
        ]
        worst, detail = max(verdicts, key=lambda found: ("same", "tie", "other").index(found[0]))
        return Checked(pair=pair, verdict=worst, idle=idle, detail=detail)

    async def _tokens_of_plain(self, pair: Pair, plain: Setting) -> dict[str, list[int]]:
        key = tuple(feature.name for feature in pair if feature.decides_tokens)
        if key not in self._expected:
            self._expected[key] = await self._laboratory.run_alone(plain, workload(plain, self._seed))
        return self._expected[key]

    async def _compared(self, plain: Setting, name: str, expected: list[int], got: list[int]) -> tuple[Verdict, str]:
        if expected == got:
            return "same", ""
        pairs = itertools.zip_longest(expected, got)
        at = next(i for i, (right, drawn) in enumerate(pairs) if right != drawn)
        request = next(one for one in workload(plain, self._seed) if one.request_id == name)
        detail = f"stream {name}, token {at}: {expected[at : at + 4]} became {got[at : at + 4]}"
        if request.sampling.temperature > 0 or at >= min(len(expected), len(got)):
            return "other", detail
        gap = await self._laboratory.gap(plain, request, expected[:at])
        return ("tie" if gap < ROUNDING else "other"), f"{detail}, over a gap of {gap:.1e}"


def all_pairs(features: Sequence[Feature]) -> list[Pair]:
    """Each feature alone, then every two."""
    every: list[Pair] = [*((feature,) for feature in features), *itertools.combinations(features, 2)]
    return [pair for pair in every if {feature.name for feature in pair} not in APART]


def covering_sets(features: Sequence[Feature], size: int, seed: int) -> list[Pair]:
    """Few sets of so many features in which every two features stand together somewhere."""
    draw = random.Random(seed)
    missing = {frozenset(pair) for pair in itertools.combinations((f.name for f in features), 2)}
    sets = []
    while missing:
        candidates = [draw.sample(list(features), size) for _ in range(50)]
        best = max(candidates, key=lambda chosen: len(_pairs_of(chosen) & missing))
        missing -= _pairs_of(best)
        sets.append(tuple(best))
    return sets


def _pairs_of(features: Sequence[Feature]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in itertools.combinations((f.name for f in features), 2)}


async def checked(check: PairCheck, pairs: Iterable[Pair]) -> AsyncIterator[Checked]:
    for pair in pairs:
        yield await check.check(pair)


def as_table(found: Iterable[Checked], features: Sequence[Feature]) -> Table:
    """A cell for each pair, on the diagonal each feature alone."""
    cells: dict[frozenset[str], str] = {frozenset(apart): "-" for apart in APART}
    for one in found:
        mark = {"same": "=", "tie": "~", "other": "X", "refused": "-"}[one.verdict]
        cells[frozenset(feature.name for feature in one.pair)] = mark + ("°" if one.idle else "")
    table = Table("", *(feature.name for feature in features))
    for row in features:
        table.add_row(row.name, *(cells.get(frozenset({row.name, column.name}), "") for column in features))
    return table
