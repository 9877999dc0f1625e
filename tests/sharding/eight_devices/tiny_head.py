"""A tiny model with an EAGLE-3 head, loaded onto meshes, and streams through them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from serving.config import Deployment, EngineConfig, MeshConfig, ModelConfig
from serving.engine.device import load_executor
from serving.engine.executor import Executor
from serving.engine.request import GenerateRequest, SamplingParams
from serving.settings.speculation import SpeculationConfig
from tests.models import eagle3_checkpoint, tiny_checkpoint
from tests.serving.engine.guessed_streams import GuessedStreams

VOCAB, D, DEPTH, LONGEST = 31, 31, 3, 48
# Four devices divide none of what they split, of the model and of its head, but their four query heads.
MODEL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": D,
    "intermediate_size": 45,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": LONGEST,
}
HEAD: dict[str, Any] = eagle3_checkpoint.CONFIG | {
    "vocab_size": VOCAB,
    "draft_vocab_size": 27,
    "hidden_size": 24,
    "target_hidden_size": D,
    "intermediate_size": 21,
    "eagle_aux_hidden_state_layer_ids": [0, 1],
}


class HeadDeployment:
    """A model with its head, loaded onto meshes."""

    def __init__(self, folder: Path, architecture: str) -> None:
        folder.mkdir()
        config = MODEL | {"architectures": [architecture]}
        weights = {name: 0.3 * value for name, value in tiny_checkpoint.weights(config).items()}
        self.speculation = SpeculationConfig(
            kind="eagle3",
            checkpoint=eagle3_checkpoint.write(folder / "head", HEAD, target_layers=1),
            depth=DEPTH,
            adaptive=False,
        )
        self.deployment = Deployment(
            name="tiny",
            model=ModelConfig(checkpoint=tiny_checkpoint.write(folder, weights, config), dtype="float32"),
            engine=EngineConfig(
                max_model_len=LONGEST,
                max_num_seqs=4,
                max_num_batched_tokens=16,
                token_buckets=(16,),
                page_size=8,
                num_pages=32,
                decode_rounds=1,
                compilation_cache=folder / "compiled",
            ),
            speculation=self.speculation,
        )

    def on(self, **sizes: int) -> Executor:
        executor = load_executor(dataclasses.replace(self.deployment, mesh=MeshConfig(**sizes)), LONGEST)
        assert isinstance(executor, Executor)
        return executor

    def streams(self, executor: Executor, *, guesses: bool = True) -> tuple[dict[str, list[int]], list[Any]]:
        """The tokens of each stream, and the guesses of each step that had any."""
        run = GuessedStreams(executor, self.speculation if guesses else SpeculationConfig())
        return run.tokens(requests()), [step.guessed() for step in run.pending]


def requests() -> list[GenerateRequest]:
    """Greedy and drawn ones, with prompts longer than a step; the last two begin alike."""
    random = np.random.default_rng(3)
    made = []
    for number, length in enumerate((4, 9, 21, 25)):
        prompt = np.random.default_rng(4 if number > 1 else 5).integers(0, VOCAB, 16).tolist()[:length]
        prompt += random.integers(0, VOCAB, length - len(prompt)).tolist()
        sampling = SamplingParams(max_tokens=12, temperature=0.0)
        if number % 2:
            sampling = dataclasses.replace(sampling, temperature=0.8, seed=number, repetition_penalty=1.2)
        made.append(GenerateRequest(request_id=str(number), prompt_token_ids=tuple(prompt), sampling=sampling))
    return made
