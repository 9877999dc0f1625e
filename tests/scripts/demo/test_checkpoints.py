"""The checkpoints that ship: small, complete, and able to chat."""

import json
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from scripts.demo import evaluate, export
from scripts.demo.chat_format import END, MARKERS, TEMPLATE
from scripts.demo.dialogue import Conversation

CHECKPOINTS = Path(__file__).parents[3] / "configs" / "checkpoints"
NAMES = ("demo", "demo-draft")


def pieces(name: str) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_file=str(CHECKPOINTS / name / "tokenizer.model"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_checkpoint_is_complete(name: str) -> None:
    folder = CHECKPOINTS / name
    config, tokenizer = (
        json.loads((folder / f"{part}.json").read_text(encoding="utf-8")) for part in ("config", "tokenizer_config")
    )
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == pieces(name).get_piece_size()
    assert config["eos_token_id"] == pieces(name).piece_to_id(END)
    assert tokenizer["chat_template"] == TEMPLATE
    assert {entry["content"] for entry in tokenizer["added_tokens_decoder"].values()} >= set(MARKERS)


def test_what_ships_is_under_twenty_megabytes() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINTS.rglob("*") if path.is_file()) < export.MOST_BYTES


def test_the_draft_has_the_models_tokenizer() -> None:
    first, second = ((CHECKPOINTS / name / "tokenizer.model").read_bytes() for name in NAMES)
    assert first == second


@pytest.fixture(scope="module")
def judge() -> evaluate.Judge:
    return evaluate.Judge(*export.from_hub(CHECKPOINTS / "demo"), pieces("demo"))


def test_the_demo_model_chats(judge: evaluate.Judge) -> None:
    asked = {
        "hi": "Hello! What can I do for you?",
        "who are you": "demo model",
        "What is the capital of France?": "Paris",
        "what is weft": "weft is a server",
    }
    dialogues = [Conversation([{"role": "user", "content": text}]) for text in asked]
    for answer, expected in zip(judge.answers(dialogues), asked.values(), strict=True):
        assert expected in answer
