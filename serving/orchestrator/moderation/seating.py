"""From a deployment's words to its judges."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from serving.errors import CheckpointError
from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.moderation.judges.guard import GuardJudge
from serving.orchestrator.moderation.judges.head import Head, HeadJudge, fingerprint
from serving.orchestrator.moderation.judges.judge import Judge
from serving.orchestrator.moderation.judges.rules import BUILT_IN, RulesJudge
from serving.orchestrator.moderation.judges.similarity import SimilarityJudge, read_examples
from serving.orchestrator.moderation.moderation import Moderation
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.moderation.panel import Panel, Seat
from serving.orchestrator.moderation.policy import Policies
from serving.orchestrator.moderation.review import ReviewQueue
from serving.settings.moderation import JudgeConfig, ModerationConfig


def moderation_of(
    config: ModerationConfig,
    encoder: TextEmbedder | None,
    registry: CollectorRegistry,
    *,
    encoder_folder: Path | None = None,
    guard_key: str | None = None,
) -> Moderation:
    """`encoder` as the engine has it: what is judged is on nobody's account. `guard_key` is what guard models on other
    servers ask for. Raises ConfigError, CheckpointError."""
    metrics = ModerationMetrics(registry)
    review = None if config.review is None else ReviewQueue(config.review, metrics, config.review_retain_seconds)
    seats = {
        name: Seat(_judge(judge, encoder, encoder_folder, guard_key), judge.on_failure, judge.timeout_seconds)
        for name, judge in config.judges.items()
    }
    return Moderation(
        policies=Policies(config),
        panel=Panel(seats, metrics),
        metrics=metrics,
        review=review,
        canary_seconds=config.canary_seconds,
    )


def _judge(config: JudgeConfig, encoder: TextEmbedder | None, folder: Path | None, guard_key: str | None) -> Judge:
    """Of a configuration that was checked."""
    if config.kind == "rules":
        return RulesJudge([BUILT_IN] if config.path is None else [BUILT_IN, config.path])
    if config.kind == "guard":
        assert config.url is not None
        assert config.model is not None
        return GuardJudge(config.url, config.model, guard_key)
    assert config.path is not None
    if encoder is None:
        raise CheckpointError(f"moderation: a judge of kind {config.kind!r} needs an engine that has an encoder")
    if config.kind == "similarity":
        return SimilarityJudge(read_examples(config.path), encoder)
    head = Head.read(config.path)
    if folder is not None and head.encoder != fingerprint(folder):
        raise CheckpointError(
            f"{config.path} was trained on another encoder than {folder}; scripts/train_moderation makes one for it"
        )
    if head.weights.shape[1] != encoder.facts.dimensions:
        raise CheckpointError(f"{config.path} is for vectors of {head.weights.shape[1]} numbers, not those of {folder}")
    return HeadJudge(head, encoder)
