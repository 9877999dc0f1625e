"""The vectors of stores that are searched, in memory: whole matrices, read once, and what was added since.

A store that does not fit is read from its disk at each search, a block at a time: slow, and right.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

Row = tuple[int, int, bytes]  # a passage's id, its document's number, its vectors as float32
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Block:
    """W windows."""

    vectors: np.ndarray  # [W, D] float32
    passages: np.ndarray  # [W] int64
    documents: np.ndarray  # [W] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    removals: int  # of documents, so far; what was removed leaves the memory at the next search
    last: int  # the id of the newest passage
    windows: int  # vectors
    dimensions: int


@dataclass(slots=True)
class _Loaded:
    removals: int
    last: int  # the id of the last passage in it
    block: Block
    room: Block  # of which `block` is the beginning; what lies beyond is nobody's yet


class VectorCache:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._stores: OrderedDict[str, _Loaded] = OrderedDict()
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}

    def blocks(self, store: str, state: StoreState, read: Callable[[int], Iterator[Row]]) -> Iterable[Block]:
        """All of a store in this state. `read` gives the rows after an id, up to the state's last."""
        dimensions = state.dimensions
        if state.windows * dimensions * 4 > self._most_bytes:
            return _streamed(read(0), dimensions)
        with self._lock:
            reading = self._reading.setdefault(store, threading.Lock())
        with reading:  # by one search at a time; those of other stores go on
            loaded = self._stores.get(store)
            if loaded is None or loaded.removals != state.removals:
                loaded = _Loaded(state.removals, 0, _empty(0, dimensions), _empty(state.windows, dimensions))
            if loaded.last < state.last:
                loaded = _grown(loaded, list(read(loaded.last)), state.last, dimensions)
            with self._lock:
                self._stores[store] = loaded
                self._stores.move_to_end(store)
                self._make_room()
        return [loaded.block]

    def forget(self, store: str) -> None:
        with self._lock:
            self._stores.pop(store, None)
            self._reading.pop(store, None)

    def clear(self) -> None:
        with self._lock:
            self._stores.clear()
            self._reading.clear()

    def _make_room(self) -> None:
        while len(self._stores) > 1 and sum(_bytes(each) for each in self._stores.values()) > self._most_bytes:
            self._stores.popitem(last=False)


def nearest(blocks: Iterable[Block], query: np.ndarray, documents: Sequence[int], limit: int) -> list[int]:
    """Ids of passages by their nearest window, best first, of the `documents` alone."""
    best: dict[int, float] = {}
    for block in blocks:
        scores = block.vectors @ query
        scores[~np.isin(block.documents, documents)] = -np.inf
        for passage, score in _best_of(scores, block.passages, limit):
            best[passage] = max(score, best.get(passage, -np.inf))
    return sorted(best, key=lambda passage: (-best[passage], passage))[:limit]


def _best_of(scores: np.ndarray, passages: np.ndarray, limit: int) -> list[tuple[int, float]]:
    """As many passages as `limit`, where there are so many: a passage's windows may fill the first places."""
    count = min(limit * 4, len(scores))
    while True:
        first = np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(len(scores))
        first = first[scores[first] > -np.inf]
        found: dict[int, float] = {}
        for at in first[np.argsort(-scores[first], kind="stable")]:
            found.setdefault(int(passages[at]), float(scores[at]))
        if len(found) >= limit or count == len(scores):
            return list(found.items())[:limit]
        count = min(count * 4, len(scores))


def _empty(windows: int, dimensions: int) -> Block:
    return Block(np.empty((windows, dimensions), np.float32), np.empty(windows, np.int64), np.empty(windows, np.int64))


def _block_of(rows: Sequence[Row], dimensions: int) -> Block:
    vectors = np.frombuffer(b"".join(row[2] for row in rows), "<f4").reshape(-1, dimensions)
    windows = [len(row[2]) // (4 * dimensions) for row in rows]
    return Block(
        vectors,
        np.repeat(np.array([row[0] for row in rows], np.int64), windows),
        np.repeat(np.array([row[1] for row in rows], np.int64), windows),
    )


def _streamed(rows: Iterator[Row], dimensions: int) -> Iterator[Block]:
    while some := list(islice(rows, ROWS_AT_ONCE)):
        yield _block_of(some, dimensions)


def _grown(loaded: _Loaded, rows: Sequence[Row], last: int, dimensions: int) -> _Loaded:
    """Searches that run keep the block they have: what is written lies beyond its end."""
    more = _block_of(rows, dimensions)
    begin, end = len(loaded.block.vectors), len(loaded.block.vectors) + len(more.vectors)
    room = loaded.room
    if end > len(room.vectors):
        room = _empty(end + end // 4, dimensions)
        for old, new in zip(_arrays(loaded.block), _arrays(room), strict=True):
            new[:begin] = old
    for new, into in zip(_arrays(more), _arrays(room), strict=True):
        into[begin:end] = new
    return _Loaded(loaded.removals, last, Block(*(array[:end] for array in _arrays(room))), room)


def _arrays(block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return block.vectors, block.passages, block.documents


def _bytes(loaded: _Loaded) -> int:
    return sum(array.nbytes for array in _arrays(loaded.room))
