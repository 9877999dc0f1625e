"""The tiers that a deployment asks for, around a whole engine."""

import dataclasses
from pathlib import Path

import pytest

from serving.config import Deployment, EngineConfig, ModelConfig
from serving.engine.limits import WatchedLayers
from serving.engine.local import start_local_engine
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.tiers.opening import fingerprint_of, open_tiers
from serving.errors import ConfigError
from serving.settings.prefix_cache import PrefixCacheConfig, check_prefix_cache
from tests.fakes.tiny_model import VOCAB_SIZE, tiny_executor


def deployment(folder: Path, **table: object) -> Deployment:
    return Deployment(
        name="tiny",
        model=ModelConfig(checkpoint=folder),
        engine=EngineConfig(step_timeout_seconds=600.0),
        prefix_cache=PrefixCacheConfig(**table),  # pyright: ignore
    )


def request(name: str) -> GenerateRequest:
    prompt = tuple(i * i % VOCAB_SIZE for i in range(50))
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=8)
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)


async def served(wanted: Deployment, name: str, version: str = "v") -> tuple[list[int], int | None, dict[str, int]]:
    """The tokens of a request to a new engine, how many of its prompt were cached, and hits by tier."""
    tiers = open_tiers(wanted, tiny_executor(), version)
    engine = start_local_engine(wanted, tiny_executor(), 0.0, version=version, tiers=tiers)
    events = [event async for event in engine.generate(request(name))]
    stats = await engine.stats()
    await engine.close()
    tokens = [token_id for event in events for token_id in event.token_ids]
    return tokens, events[0].cached_tokens, {tier.tier: tier.hit_tokens for tier in stats.tiers}


async def test_an_engine_finds_what_the_one_before_it_left_on_disk_and_nothing_of_other_weights(tmp_path: Path) -> None:
    wanted = deployment(tmp_path, host_bytes=64 << 20, disk=tmp_path / "pages", disk_bytes=64 << 20)
    first, cached, hits = await served(wanted, "first")
    assert (cached, hits) == (0, {"host": 0, "disk": 0})
    again, cached, hits = await served(wanted, "again")
    assert (again, cached, hits) == (first, 48, {"host": 0, "disk": 48})
    _, cached, _ = await served(wanted, "other", version="w")
    assert cached == 0
    assert await served(deployment(tmp_path), "plain") == (first, 0, {})


def test_a_fingerprint_changes_with_what_a_page_depends_on(tmp_path: Path) -> None:
    executor = tiny_executor()
    form, limits = executor.page_exchange().form, executor.limits
    base = deployment(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1")
    other_type = dataclasses.replace(base, model=dataclasses.replace(base.model, dtype="bfloat16"))
    longer = dataclasses.replace(limits, max_model_len=2 * limits.max_model_len)
    heads = [
        dataclasses.replace(limits, watched=WatchedLayers(layers=layers, width=8, dtype="float32"))
        for layers in ((0, 1), (0, 2))
    ]
    kinds = [
        fingerprint_of(base, form, "v", limits),
        fingerprint_of(base, form, "w", limits),
        fingerprint_of(other_type, form, "v", limits),
        fingerprint_of(base, dataclasses.replace(form, words=("uint8",)), "v", limits),
        *(fingerprint_of(base, form, "v", other) for other in (longer, *heads)),
    ]
    weights.write_bytes(b"12")
    kinds.append(fingerprint_of(base, form, "v", limits))
    assert len(set(kinds)) == len(kinds)


def test_host_memory_for_less_than_two_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        open_tiers(deployment(tmp_path, host_bytes=1 << 16), tiny_executor(), "v")


@pytest.mark.parametrize(
    ("table", "where", "param"),
    [
        ({"disk": Path("d")}, {}, "disk"),
        ({"host_bytes": 1}, {"caching": False}, "host_bytes"),
        ({"host_bytes": 1}, {"data": 2}, "host_bytes"),
        ({"host_bytes": 1}, {"pipeline": 2}, "host_bytes"),
        ({"host_bytes": 1}, {"processes": 2}, "host_bytes"),
    ],
)
def test_what_tiers_are_not_offered_with_is_refused(table: dict, where: dict, param: str) -> None:
    beside = {"caching": True, "data": 1, "pipeline": 1, "processes": 1} | where
    with pytest.raises(ConfigError) as refusal:
        check_prefix_cache(PrefixCacheConfig(**table), **beside, where="d.toml")
    assert refusal.value.param == param
    check_prefix_cache(PrefixCacheConfig(), **beside, where="d.toml")
