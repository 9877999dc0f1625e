"""A tiny run from dialogues to checkpoint: the loss falls, a stopped run goes on, the export is a Llama to others."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from scripts.demo import dataset, decode, export, tokenizer
from scripts.demo.model import DemoLlama, ModelConfig, grown, initial
from scripts.demo.train import Stage, Trainer, mean_gradients, rate

TINY = ModelConfig(vocab=0, d=32, layers=2, heads=2, kv_heads=1, head_dim=16, ff=64)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer and one shard of rows."""
    work = tmp_path_factory.mktemp("demo")
    tokenizer.write_corpus(work / "corpus.txt", dialogues=300, seed=1)
    tokenizer.train(work / "corpus.txt", work / "tokenizer.model", vocabulary=512)
    (work / "rows").mkdir()
    dataset.write_shard(work / "tokenizer.model", work / "rows" / "0000.npy", 128, 0.0, seed=1, tokens=30_000)
    return work


@pytest.fixture(scope="module")
def config(workshop: Path) -> ModelConfig:
    return replace(TINY, vocab=tokenizer.load(workshop / "tokenizer.model").get_piece_size())


def test_the_tokenizer_gives_back_any_text(workshop: Path) -> None:
    pieces = tokenizer.load(workshop / "tokenizer.model")
    for text in ("Hello, Kelova!\n\n  two  spaces ", "naïve 世界 😀", '<tool_call>{"a": 12}</tool_call><|end|>'):
        assert pieces.decode(pieces.encode(text)) == text


def test_a_name_is_cut_alike_after_a_space_and_at_the_beginning(workshop: Path) -> None:
    pieces = tokenizer.load(workshop / "tokenizer.model")
    assert pieces.encode("is Kelova")[-len(pieces.encode("Kelova")) :] == pieces.encode("Kelova")


def test_a_batch_predicts_the_next_token_within_a_dialogue(workshop: Path) -> None:
    batch = next(dataset.batches(workshop / "rows", rows=4, learned_spots=256, seed=0))
    used = batch.weights > 0
    flat, segments = batch.tokens.reshape(-1), batch.segments.reshape(-1)
    assert used.any()
    assert (flat[batch.spots[used] + 1] == batch.targets[used]).all()
    assert (segments[batch.spots[used] + 1] == segments[batch.spots[used]]).all()
    assert (batch.positions[batch.segments > 0] < 128).all()


def test_a_few_steps_lower_the_loss_and_a_new_trainer_goes_on_from_them(workshop: Path, config: ModelConfig) -> None:
    trainer = Trainer(config, workshop / "run", peak=1e-2, budget_seconds=1e9)
    source = dataset.batches(workshop / "rows", rows=4, learned_spots=256, seed=0)
    for _ in range(30):
        trainer.take([next(source), next(source)])
    assert np.mean(trainer.losses[-5:]) < np.mean(trainer.losses[:5]) - 0.2
    trainer.save()
    again = Trainer(config, workshop / "run", peak=1e-2, budget_seconds=1e9)
    assert again.restore()
    assert again.progress.step == 30
    np.testing.assert_array_equal(again.params["qkv"], trainer.params["qkv"])


def test_the_working_folder_may_be_named_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: ModelConfig
) -> None:
    monkeypatch.chdir(tmp_path)
    Trainer(config, Path("run"), peak=1e-2, budget_seconds=1.0, seed=1).save()
    again = Trainer(config, Path("run"), peak=1e-2, budget_seconds=1.0)
    assert again.restore()
    np.testing.assert_array_equal(again.params["qkv"], initial(config, 1)["qkv"])


def test_a_run_ends_with_its_budget(workshop: Path, config: ModelConfig) -> None:
    trainer = Trainer(config, workshop / "short", peak=3e-3, budget_seconds=0.05)
    trainer.run([Stage(workshop / "rows", 128, 1.0)], quiet=True)
    assert trainer.progress.seconds >= 0.05
    assert rate(trainer.progress, 0.05, 1.0) <= 0.02


def test_a_model_begins_as_one_of_fewer_layers(workshop: Path, config: ModelConfig) -> None:
    params = initial(config, 5)
    larger = replace(config, layers=3)
    trainer = Trainer(larger, workshop / "grown", peak=1e-2, budget_seconds=1e9)
    trainer.begin(config, params)
    rows = jnp.arange(20, 60)[None], jnp.ones((1, 40), int), jnp.arange(40)[None], jnp.arange(40)
    np.testing.assert_allclose(DemoLlama(larger, trainer.params)(*rows), DemoLlama(config, params)(*rows), atol=1e-6)
    trainer.take([next(dataset.batches(workshop / "rows", rows=8, learned_spots=512, seed=0))])
    assert np.all(np.any(np.asarray(trainer.params["down"]) != 0, axis=(1, 2)))  # the copy learns


@pytest.mark.parametrize("layers", [1, 5])
def test_weights_grow_to_at_most_twice_their_layers(config: ModelConfig, layers: int) -> None:
    with pytest.raises(ValueError, match=f"2 layers do not grow to {layers}"):
        grown(initial(config, 0), layers)


def test_weights_of_another_width_are_nothing_to_begin_with(workshop: Path, config: ModelConfig) -> None:
    trainer = Trainer(config, workshop / "other", peak=1e-2, budget_seconds=1e9)
    with pytest.raises(ValueError, match="the weights to begin with are those of"):
        trainer.begin(replace(config, d=64), initial(replace(config, d=64), 0))


def test_rows_that_are_not_there_are_an_error(workshop: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data phase"):
        next(dataset.batches(workshop / "nothing", rows=1, learned_spots=8, seed=0))


def test_dialogues_in_one_row_do_not_see_each_other(config: ModelConfig) -> None:
    params = initial(config, 0)
    rng = np.random.default_rng(0)
    first, second = rng.integers(20, 400, (2, 10))
    model = DemoLlama(config, params)
    alone = model(jnp.asarray(second)[None], jnp.ones((1, 10), int), jnp.arange(10)[None], jnp.arange(10))
    packed = model(
        jnp.asarray(np.concatenate([first, second]))[None],
        jnp.asarray([[1] * 10 + [2] * 10]),
        jnp.asarray([[*range(10), *range(10)]]),
        jnp.arange(10, 20),
    )
    np.testing.assert_allclose(packed, alone, atol=1e-5)


def test_a_step_in_parts_has_the_gradients_of_the_whole(workshop: Path, config: ModelConfig) -> None:
    params = initial(config, 4)
    source = dataset.batches(workshop / "rows", rows=2, learned_spots=100, seed=0)
    parts = [next(source), next(source)]
    stacked = {name: jnp.stack([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    joined = {name: jnp.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    joined["spots"] = joined["spots"].at[100:].add(parts[0].tokens.size)
    whole = mean_gradients(config, params, {name: value[None] for name, value in joined.items()})
    for name, value in mean_gradients(config, params, stacked)[1].items():
        np.testing.assert_allclose(value, whole[1][name], atol=2e-4, err_msg=name)


def test_the_export_has_the_logits_that_were_trained(workshop: Path, config: ModelConfig, tmp_path: Path) -> None:
    params = initial(config, 1)
    export.export(config, params, workshop / "tokenizer.model", tmp_path)
    back, rounded = export.from_hub(tmp_path)
    assert back == config
    tokens = np.random.default_rng(2).integers(20, 400, (1, 40))
    positions = jnp.arange(40)[None]
    cache = jnp.zeros((config.layers, 2, 1, 64, config.kv_heads, config.head_dim))
    _, states = decode.forward(config, rounded, cache, jnp.asarray(tokens), positions)
    ours = np.asarray(states[0] @ rounded["embedding"].T)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(torch.tensor(tokens)).logits[0]
    np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=2e-4)
    model = DemoLlama(config, rounded)
    trained = model.logits(model(jnp.asarray(tokens), jnp.ones((1, 40), int), positions, jnp.arange(40)))
    np.testing.assert_allclose(trained, ours, atol=0.05)  # the training forward multiplies in bfloat16


def test_greedy_decoding_of_a_batch_is_that_of_each_prompt_alone(config: ModelConfig) -> None:
    params = initial(config, 3)
    prompts = [[5, 9, 30], [7, 80, 90, 100, 110]]
    together = decode.greedy(config, params, prompts, end=-1, most=6)
    assert together == [decode.greedy(config, params, [prompt], end=-1, most=6)[0] for prompt in prompts]
