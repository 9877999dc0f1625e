"""One logistic regression for each category, on the encoder's vectors of the labelled set's training part."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from scripts.moderation.labelled import Item, training_items
from scripts.moderation.local_encoder import local_encoder
from serving.orchestrator.moderation.judges.encoded import vectors_of
from serving.orchestrator.moderation.judges.head import Head, fingerprint
from serving.orchestrator.moderation.judges.similarity import BENIGN

PENALTY = 3e-4  # of the squares of the weights, beside the mean loss of a text


def trained_head(items: Sequence[Item], vectors: np.ndarray, encoder: str) -> Head:
    categories = tuple(dict.fromkeys(item.label for item in items if item.label != BENIGN))
    labels = np.array([item.label for item in items])
    fitted = [_fit(vectors, labels == category, _weights(labels, category)) for category in categories]
    return Head(
        categories,
        np.stack([weights for weights, _ in fitted]).astype(np.float32),
        np.array([bias for _, bias in fitted], np.float32),
        encoder,
    )


def _weights(labels: np.ndarray, category: str) -> np.ndarray:
    """A third of the weight for the category, a third for what is benign, a third for all the others: which of two
    harmful categories a text is of matters less than whether it is of one."""
    groups = [labels == category, labels == BENIGN, (labels != category) & (labels != BENIGN)]
    return sum((group / max(group.sum(), 1) / len(groups) for group in groups), np.zeros(len(labels)))


def _fit(vectors: np.ndarray, is_positive: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    signs = np.where(is_positive, 1.0, -1.0)
    inputs = vectors.astype(np.float64)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        along, bias = parameters[:-1], parameters[-1]
        margins = signs * (inputs @ along + bias)
        losses = np.logaddexp(0.0, -margins)
        slopes = -signs * weights / (1.0 + np.exp(margins))
        gradient = np.append(inputs.T @ slopes + 2 * PENALTY * along, slopes.sum())
        return float(weights @ losses + PENALTY * along @ along), gradient

    found = minimize(loss, np.zeros(vectors.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return found.x[:-1], float(found.x[-1])


def examples_file(items: Sequence[Item]) -> str:
    """The training part as the examples of a judge of kind "similarity"."""
    lines = ["# Written by scripts/train_moderation from scripts/moderation/labelled.toml."]
    for label in dict.fromkeys(item.label for item in items):
        texts = ",\n".join(f"    {json.dumps(item.text, ensure_ascii=False)}" for item in items if item.label == label)
        lines.append(f"{json.dumps(label)} = [\n{texts},\n]")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/train_moderation", description=__doc__)
    parser.add_argument("--encoder", type=Path, default=Path(".build/encoder"), help="its folder")
    parser.add_argument("--out", type=Path, default=Path("configs/moderation"), help="where the files are written")
    arguments = parser.parse_args()
    items = training_items()
    encoder = local_encoder(arguments.encoder)
    vectors = asyncio.run(vectors_of(encoder, [item.text for item in items]))
    head = trained_head(items, vectors, fingerprint(arguments.encoder))
    arguments.out.mkdir(parents=True, exist_ok=True)
    head.save(arguments.out / "head.safetensors")
    (arguments.out / "examples.toml").write_text(examples_file(items), encoding="utf-8")
    scores = head.scores(vectors)
    labels = np.array([item.label for item in items])
    print(f"{len(items)} texts, of them {int((labels == BENIGN).sum())} benign; at 0.5 on what was learnt from:")
    for column, category in enumerate(head.categories):
        hits = scores[labels == category, column] >= 0.5
        wrong = scores[labels == BENIGN, column] >= 0.5
        print(f"  {category:12s} {hits.mean():6.1%} found, {wrong.mean():6.1%} of the benign found too")


if __name__ == "__main__":
    main()
