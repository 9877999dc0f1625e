"""The features, an entry each: what it changes, whether it decides tokens, and what shows that it was at work.

A feature that decides tokens (penalties, a grammar ...) is on in the plain engine too that its pairs are compared with;
one that must not (chunks, caches, speculation ...) is off there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from scripts.check_feature_pairs.checkpoint import ADAPTER, END
from serving.engine.client import EngineStats
from serving.engine.request import GenerateRequest, GrammarKind, GrammarSpec, TokenEvent

# Pages of the device. With some, what is read is evicted; with few, streams are preempted.
PLENTY, SOME, FEW = 256, 48, 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How an engine is built and asked. As it stands: the plain one."""

    chunked: bool = False  # prompts are read a few tokens a step
    pages: int = PLENTY
    warm: bool = False  # the prompts have been read before
    tiers: frozenset[Literal["host", "disk"]] = frozenset()  # that have prompts which the device has not
    rounds: int = 1
    speculation: Literal["off", "ngram", "draft", "eagle3"] = "off"
    cache_dtype: Literal["int8"] | None = None
    devices: int = 1
    asks: tuple[Callable[[GenerateRequest], GenerateRequest], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What an engine has said of a run."""

    stats: EngineStats
    events: list[TokenEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    name: str
    apply: Callable[[Setting], Setting]
    decides_tokens: bool
    at_work: Callable[[Evidence], bool] = lambda _: True


def _with_sampling(**fields: object) -> Callable[[GenerateRequest], GenerateRequest]:
    return lambda request: replace(request, sampling=replace(request.sampling, **fields))  # type: ignore[arg-type]


def _asks(ask: Callable[[GenerateRequest], GenerateRequest]) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, asks=(*setting.asks, ask))


def _under_grammar(request: GenerateRequest) -> GenerateRequest:
    """Every second stream's."""
    if int(request.request_id) % 2:
        return request
    grammar = GrammarSpec(kind=GrammarKind.REGEX, text="(the )?[a-f]{4}-[0-9]{24,30}")
    sampling = replace(request.sampling, eos_token_ids=(END,))
    return replace(request, grammar=grammar, sampling=sampling)


def _adapted(request: GenerateRequest) -> GenerateRequest:
    """All but the first stream's."""
    return replace(request, adapter=ADAPTER) if int(request.request_id) else request


def _cached(evidence: Evidence) -> bool:
    return any(event.cached_tokens for event in evidence.events)


def _came_from(tier: str) -> Callable[[Evidence], bool]:
    return lambda evidence: any(stats.tier == tier and stats.hit_tokens > 0 for stats in evidence.stats.tiers)


def _guessed(evidence: Evidence) -> bool:
    return any(event.guessed_tokens for event in evidence.events)


FEATURES = (
    Feature(
        name="chunks",
        apply=lambda setting: replace(setting, chunked=True),
        decides_tokens=False,
    ),
    Feature(
        name="prefix hit", apply=lambda setting: replace(setting, warm=True), decides_tokens=False, at_work=_cached
    ),
    Feature(
        name="host tier",
        apply=lambda setting: replace(
            setting, warm=True, pages=min(setting.pages, SOME), tiers=setting.tiers | {"host"}
        ),
        decides_tokens=False,
        at_work=_came_from("host"),
    ),
    Feature(
        name="disk tier",
        apply=lambda setting: replace(setting, warm=True, tiers=setting.tiers | {"disk"}),
        decides_tokens=False,
        at_work=_came_from("disk"),
    ),
    Feature(
        name="preemption",
        apply=lambda setting: replace(setting, pages=FEW),
        decides_tokens=False,
        at_work=lambda evidence: evidence.stats.preemptions > 0,
    ),
    Feature(
        name="n-gram",
        apply=lambda setting: replace(setting, speculation="ngram"),
        decides_tokens=False,
        at_work=_guessed,
    ),
    Feature(
        name="draft model",
        apply=lambda setting: replace(setting, speculation="draft"),
        decides_tokens=False,
        at_work=_guessed,
    ),
    Feature(
        name="EAGLE-3 head",
        apply=lambda setting: replace(setting, speculation="eagle3"),
        decides_tokens=False,
        at_work=_guessed,
    ),
    Feature(
        name="multi-step",
        apply=lambda setting: replace(setting, rounds=4),
        decides_tokens=False,
    ),
    Feature(name="grammar", apply=_asks(_under_grammar), decides_tokens=True),
    Feature(name="adapter", apply=_asks(_adapted), decides_tokens=True),
    Feature(
        name="penalties",
        apply=_asks(_with_sampling(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2)),
        decides_tokens=True,
    ),
    Feature(
        name="logprobs",
        apply=_asks(_with_sampling(logprobs=2)),
        decides_tokens=True,
        at_work=lambda evidence: all(len(event.logprobs) == len(event.token_ids) for event in evidence.events),
    ),
    Feature(name="int8 pages", apply=lambda setting: replace(setting, cache_dtype="int8"), decides_tokens=True),
    Feature(name="mesh of 4", apply=lambda setting: replace(setting, devices=4), decides_tokens=False),
)
APART = (  # an engine has one of them
    {"n-gram", "draft model"},
    {"n-gram", "EAGLE-3 head"},
    {"draft model", "EAGLE-3 head"},
)
BY_NAME = {feature.name: feature for feature in FEATURES}


def setting_of(features: tuple[Feature, ...]) -> Setting:
    setting = Setting()
    for feature in features:
        setting = feature.apply(setting)
    return setting


def plain_setting(features: tuple[Feature, ...]) -> Setting:
    """That of the plain engine which the features are compared with."""
    return setting_of(tuple(feature for feature in features if feature.decides_tokens))
