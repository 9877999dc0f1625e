"""The alert rules and the dashboard name metrics that a server has, and say what their own tests say."""

import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scripts import make_dashboard
from serving.engine.client import EngineStats
from serving.engine.tiers.stats import TierStats
from serving.events.event_metrics import EventMetrics
from serving.gateway.gateway_metrics import GatewayMetrics
from serving.observability.metrics import Metrics
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.quality_watch.watch_metrics import QualityWatchMetrics

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "monitoring"
_METRIC = re.compile(r"\b(?:vllm:|weft_)[a-z0-9_]+")


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """The names of all series of a server."""
    metrics = Metrics("m")
    gateway = GatewayMetrics(metrics.registry)
    gateway.admitted("a")
    gateway.refused("a", "rate")
    gateway.used("a", "prompt", 1)
    gateway.watch_queue("m", {"standard": lambda: 0.0})
    metrics.refuse("x")
    EventMetrics(metrics.registry)
    moderation = ModerationMetrics(metrics.registry)
    moderation.failures.labels("guard", "open")
    moderation.false_positives.labels("any")
    quality = QualityWatchMetrics(metrics.registry)
    quality.asked.labels("failed")
    quality.score.labels("capital")
    numbers: dict[str, Any] = dict.fromkeys(EngineStats.__dataclass_fields__, 0) | {"tenant_service": (("a", 1.0),)}
    numbers |= {"tiers": (asdict(TierStats(tier="host", pages=1, room=2, bytes=3)),)}
    lines = metrics.render(numbers).decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}


def test_the_rules_are_valid_and_fire_on_what_they_are_for() -> None:
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yaml").read_text())
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", (FOLDER / "alerts_test.yaml").read_text())
    assert set(alerts) == set(fired)


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
def test_every_metric_named_is_exported(name: str, exported: set[str]) -> None:
    named = set(_METRIC.findall((FOLDER / name).read_text()))
    assert len(named) > 5
    assert named - exported == set()


def test_every_series_is_named_in_some_page(exported: set[str]) -> None:
    """`_total` may be left out, and of the tiers' all but the end."""
    docs = "\n".join(path.read_text() for path in (FOLDER.parents[1] / "docs").glob("*.md"))
    series = {name for name in exported if not name.endswith(("_bucket", "_sum", "_created"))}
    named = set(_METRIC.findall(docs))
    named |= {f"weft_prefix_tier{end}" for end in re.findall(r"`(_[a-z_]+)`", docs)}
    missing = {name for name in series if not {name, name.removesuffix("_total"), name.removesuffix("_count")} & named}
    assert missing == set()


def test_the_dashboard_is_the_one_that_its_table_makes() -> None:
    assert (FOLDER / "dashboard.json").read_text() == make_dashboard.text()


def test_no_two_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(make_dashboard.text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
