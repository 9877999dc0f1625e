"""The tokenizer: byte-pair pieces with byte fallback, split digits, and the chat markers as single pieces."""

import io
import re
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from scripts.demo.chat_format import MARKERS, parts
from scripts.demo.dialogues.mixture import conversation, training_episode
from scripts.demo.draw import Draw

VOCABULARY = 1024
_SPACED_CAPITAL = re.compile(r"▁[A-Z]")


def write_corpus(path: Path, dialogues: int, seed: int) -> None:
    """Writes dialogues as plain lines, without the markers, to train the pieces on."""
    draw = Draw(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(dialogues):
            for part in parts(conversation(training_episode(draw, long_share=0.02))):
                text = part.text
                for marker in MARKERS:
                    text = text.replace(marker, "\n")
                for line in text.split("\n"):
                    if line:
                        file.write(line + "\n")


def train(corpus: Path, path: Path, vocabulary: int = VOCABULARY) -> None:
    """Trains the pieces and writes `path`.

    Pieces that hold a space and a capital letter are taken out afterwards: a name is then cut alike after a space,
    after a quote and at the beginning of an answer, which makes copying it much easier for a small model."""
    markers = [*MARKERS, "\n"]
    surplus = 250
    while True:
        model = _trained(corpus, vocabulary + surplus, markers)
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(model)
        kept = [piece for piece in proto.pieces if not _SPACED_CAPITAL.match(piece.piece)]
        if len(kept) >= vocabulary:
            break
        surplus += 100
    del proto.pieces[:]
    proto.pieces.extend(kept[: vocabulary - _characters(kept)] + [piece for piece in kept if _is_character(piece)])
    proto.trainer_spec.vocab_size = len(proto.pieces)
    path.write_bytes(proto.SerializeToString())


def _is_character(piece: sentencepiece_model_pb2.ModelProto.SentencePiece) -> bool:
    return piece.type == piece.NORMAL and len(piece.piece) == 1


def _characters(pieces: list[sentencepiece_model_pb2.ModelProto.SentencePiece]) -> int:
    return sum(_is_character(piece) for piece in pieces)


def _trained(corpus: Path, size: int, markers: list[str]) -> bytes:

    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_writer=output,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=True,
        split_digits=True,
        user_defined_symbols=markers,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        character_coverage=1.0,
        max_sentence_length=20000,
        num_threads=2,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        required_chars="".join(chr(code) for code in range(33, 127)),
        minloglevel=1,
    )
    return output.getvalue()


def load(path: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(path))
