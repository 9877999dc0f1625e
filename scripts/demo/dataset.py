"""Rows of packed dialogues on disk: made ahead by several processes, read by memory map, batched without end.

A row holds whole dialogues one after another. `segments` numbers them from 1 (0 is padding), so that attention and
positions stay within a dialogue; `learned` marks the tokens to be predicted.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor

from scripts.demo import tokenizer
from scripts.demo.chat_format import parts
from scripts.demo.dialogue import Conversation
from scripts.demo.dialogues.mixture import conversation, training_episode
from scripts.demo.draw import Draw

SHARD_TOKENS = 500_000
_OPEN_ROWS = 64


@dataclass(frozen=True)
class Batch:
    """tokens, segments, positions [B, T]. `spots` [M]: flat indices whose next token is learned. `weights`: 0 or 1."""

    tokens: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    spots: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


def encoded(pieces: SentencePieceProcessor, dialogue: Conversation) -> tuple[list[int], list[bool]]:
    """The tokens of a dialogue, BOS first, and which of them are learned."""
    tokens, learned = [pieces.bos_id()], [False]
    for part in parts(dialogue):
        ids = pieces.encode(part.text)
        tokens += ids
        learned += [part.learned] * len(ids)
    return tokens, learned


def write_shard(model: Path, path: Path, length: int, long_share: float, seed: int, tokens: int = SHARD_TOKENS) -> int:
    """Packs about `tokens` tokens into rows of `length` and returns how many tokens are no padding."""
    pieces, draw = tokenizer.load(model), Draw(seed)
    rows: list[tuple[list[int], list[int], list[bool]]] = []
    still_open: list[tuple[list[int], list[int], list[bool]]] = []
    total = 0
    while total < tokens:
        ids, learned = encoded(pieces, conversation(training_episode(draw, long_share)))
        if len(ids) > length:
            continue
        total += len(ids)
        fitting = [row for row in still_open if len(row[0]) + len(ids) <= length]
        row = max(fitting, key=lambda item: len(item[0])) if fitting else ([], [], [])
        if not fitting:
            still_open.append(row)
        row[1].extend([row[1][-1] + 1 if row[1] else 1] * len(ids))
        row[0].extend(ids)
        row[2].extend(learned)
        if len(row[0]) > length - 16 or len(still_open) > _OPEN_ROWS:
            fullest = max(range(len(still_open)), key=lambda index: len(still_open[index][0]))
            rows.append(still_open.pop(fullest))
    rows += still_open
    draw.rng.shuffle(rows)
    packed = np.zeros((3, len(rows), length), np.int16)
    for index, row in enumerate(rows):
        for kind in range(3):
            packed[kind, index, : len(row[0])] = row[kind]
    np.save(path, packed)
    return total


def write_shards(
    model: Path, folder: Path, length: int, long_share: float, tokens: int, seed: int, processes: int
) -> int:
    """Writes the shards that are not there yet and returns how many there are in all."""
    folder.mkdir(parents=True, exist_ok=True)
    count = max(1, tokens // SHARD_TOKENS)
    paths = {index: folder / f"{index:04}.npy" for index in range(count)}
    missing = [index for index, path in paths.items() if not path.exists()]
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(write_shard, model, paths[index], length, long_share, seed + index) for index in missing]
        for job in jobs:
            job.result()
    return count


def batches(folder: Path, rows: int, learned_spots: int, seed: int) -> Iterator[Batch]:
    """Batches of `rows` rows, over all shards of the folder, shuffled, again and again; new shards are noticed."""
    rng = np.random.default_rng(seed)
    while True:
        shards = sorted(folder.glob("*.npy"))
        if not shards:
            raise FileNotFoundError(f"{folder} holds no rows; make them with the data phase")
        for shard in rng.permutation(len(shards)):
            packed = np.load(shards[shard], mmap_mode="r")
            order = rng.permutation(packed.shape[1])
            for start in range(0, len(order) - rows + 1, rows):
                yield _batch(np.asarray(packed[:, np.sort(order[start : start + rows])]), learned_spots, rng)


def _batch(packed: np.ndarray, learned_spots: int, rng: np.random.Generator) -> Batch:
    tokens, segments, learned = packed.astype(np.int32)
    length = tokens.shape[1]
    begins = np.concatenate(
        [np.ones_like(segments[:, :1]), (segments[:, 1:] != segments[:, :-1]).astype(np.int32)], axis=1
    )
    index = np.arange(length)
    positions = index - np.maximum.accumulate(np.where(begins == 1, index, 0), axis=1)
    flat = np.flatnonzero(learned.reshape(-1)) - 1
    if len(flat) > learned_spots:
        flat = np.sort(rng.permutation(flat)[:learned_spots])
    spots = np.zeros(learned_spots, np.int32)
    weights = np.zeros(learned_spots, np.float32)
    spots[: len(flat)], weights[: len(flat)] = flat, 1.0
    targets = tokens.reshape(-1)[np.minimum(spots + 1, tokens.size - 1)]
    return Batch(tokens, segments, positions.astype(np.int32), spots, targets, weights)
