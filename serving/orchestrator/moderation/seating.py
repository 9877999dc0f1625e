"""From a deployment's words to its judges."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.moderation.judges.judge import Judge
from serving.orchestrator.moderation.judges.rules import BUILT_IN, RulesJudge
from serving.orchestrator.moderation.moderation import Moderation
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.moderation.panel import Panel, Seat
from serving.orchestrator.moderation.policy import Policies
from serving.orchestrator.moderation.review import ReviewQueue
from serving.settings.moderation import JudgeConfig, ModerationConfig


def moderation_of(config: ModerationConfig, encoder: TextEmbedder | None, registry: CollectorRegistry) -> Moderation:
    """`encoder` as the engine has it: what is judged is on nobody's account. Raises ConfigError, CheckpointError."""
    metrics = ModerationMetrics(registry)
    review = None if config.review is None else ReviewQueue(config.review, metrics)
    panel = Panel(seats_of(config.judges, encoder), metrics)
    return Moderation.of(Policies(config), panel, metrics, review)


def seats_of(judges: Mapping[str, JudgeConfig], encoder: TextEmbedder | None) -> dict[str, Seat]:
    return {
        name: Seat(_judge(judge, encoder), judge.on_failure, judge.timeout_seconds) for name, judge in judges.items()
    }


def _judge(config: JudgeConfig, encoder: TextEmbedder | None) -> Judge:
    if config.kind == "rules":
        return RulesJudge([BUILT_IN] if config.path is None else [BUILT_IN, config.path])
    raise AssertionError(config.kind)
