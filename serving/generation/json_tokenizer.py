"""The `tokenizers` library's tokenizer.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from serving.errors import CheckpointError
from serving.generation.checkpoint_text import NAMED_SPECIAL_TOKENS, CheckpointText


class JsonTokenizer:
    """Implements `Tokenizer`. The file's normalizer, pre-tokenizer, model and post-processor (which adds BOS) are used
    as they are; its decoder is replaced by a table of bytes per token, so that text can be streamed.

    `clean_up_tokenization_spaces` is not applied: it rewrites text that was already sent, and transformers itself
    ignores it for BPE.
    """

    def __init__(self, path: Path, checkpoint: CheckpointText) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
            decoder = json.loads(path.read_text(encoding="utf-8")).get("decoder")
        except Exception as error:
            raise CheckpointError(f"{path}: not a tokenizer.json that can be read: {error}") from error
        self.checkpoint = checkpoint
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._add_missing_tokens(path)
        self._mark_special_tokens()
        self._tokenizer.encode_special_tokens = checkpoint.split_special_tokens
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        spell = _Decoder(decoder, path)
        self.drops_first_space = spell.drops_first_space
        self.replaces_each_byte = spell.byte_fallback
        self._pieces = [""] * self.vocab_size
        for piece, token_id in vocabulary.items():
            self._pieces[token_id] = piece
        self._bytes = [spell(piece) for piece in self._pieces]
        added = self._tokenizer.get_added_tokens_decoder()
        for token_id in added:
            # One that is found in normalized text stands for what it is there: Llama 2's takes the space before it.
            self._bytes[token_id] = spell(self._tokenizer.id_to_token(token_id) or "")
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.most_chars_per_token = max(map(len, self._pieces), default=1)
        self.bos_token_id = self._id(checkpoint.special_tokens.get("bos_token"))
        own = self._id(checkpoint.special_tokens.get("eos_token"))
        self.eos_token_ids = tuple(dict.fromkeys(([] if own is None else [own]) + list(checkpoint.eos_token_ids)))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The batch call, unlike the single one, lets other threads run meanwhile; "fast" leaves offsets out.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def piece(self, token_id: int) -> str:
        return self._pieces[token_id] if 0 <= token_id < self.vocab_size else ""

    def _id(self, content: str | None) -> int | None:
        return None if content is None else self._tokenizer.token_to_id(content)

    def _add_missing_tokens(self, path: Path) -> None:
        """Tokens that the file lacks and those beside it have, in the order of transformers: by their ids, then those
        that are only named, each with the next id. One that the model has no embedding for is not added.

        Raises CheckpointError where an id is not the next one.
        """
        checkpoint, size = self.checkpoint, self.checkpoint.vocab_size or 0
        special = {*checkpoint.special_tokens.values(), *checkpoint.more_special_tokens}
        said = {**checkpoint.older_added_tokens, **checkpoint.added_tokens}
        for token_id, token in sorted(said.items()):
            if token_id >= size or self._id(token.content) is not None:
                continue
            if token_id != (free := self._next_id()):
                table = "added_tokens.json" if checkpoint.older_added_tokens else "added_tokens_decoder"
                raise CheckpointError(
                    f"{path}: it lacks the token {token.content!r}, to which {table} gives the id {token_id}, and the "
                    f"next free one is {'taken' if free is None else free}: correct that id, or put the token into "
                    f"{path.name}"
                )
            self._add_missing(token.content, special=token.special or token.content in special)
        listed = {token.content for token in said.values()}
        first = [checkpoint.special_tokens.get(name) for name in NAMED_SPECIAL_TOKENS]
        for content in [*first, *checkpoint.special_tokens.values(), *checkpoint.more_special_tokens]:
            if content is None or content in listed or self._id(content) is not None:
                continue
            token_id = self._next_id()
            if token_id is None or token_id >= size:
                break
            self._add_missing(content, special=True)

    def _next_id(self) -> int | None:
        """What the library gives to the next token; None where another one has that: a vocabulary with holes."""
        added = self._tokenizer.get_added_tokens_decoder()
        number = max(self._tokenizer.get_vocab_size(with_added_tokens=False), max(added, default=-1) + 1)
        return None if self._tokenizer.id_to_token(number) is not None else number

    def _add_missing(self, content: str, *, special: bool) -> None:
        self._add(tokenizers.AddedToken(content, special=special, normalized=not special))

    def _add(self, token: tokenizers.AddedToken) -> None:
        (self._tokenizer.add_special_tokens if token.special else self._tokenizer.add_tokens)([token])

    def _mark_special_tokens(self) -> None:
        """What tokenizer_config.json says of tokens, which has precedence."""
        added = {token.content: token for token in self._tokenizer.get_added_tokens_decoder().values()}
        said = {token.content: token for token in self.checkpoint.added_tokens.values()}
        special = {*self.checkpoint.special_tokens.values(), *self.checkpoint.more_special_tokens}
        for name in dict.fromkeys([*sorted(special), *said]):
            old = added.get(name, tokenizers.AddedToken(name, normalized=False))
            flags = said.get(name, old)
            token = tokenizers.AddedToken(
                name,
                single_word=flags.single_word,
                lstrip=flags.lstrip,
                rstrip=flags.rstrip,
                normalized=flags.normalized,
                special=name in special or flags.special or old.special,
            )
            changed = name not in added or repr(token) != repr(old)
            if changed and self._id(name) is not None:
                self._add(token)


class _Decoder:
    """The file's decoder as a function of one token, plus what happens to the text's first space.

    Raises CheckpointError for a decoder whose output cannot be told token by token.
    """

    def __init__(self, spec: dict[str, Any] | None, path: Path) -> None:
        self.byte_fallback = False
        self.drops_first_space = False
        self._replacements: list[tuple[str, str]] = []
        self._spell: Callable[[str], bytes] = str.encode
        self._path = path
        if spec is None:
            raise CheckpointError(f"{path}: it has no decoder, so that token ids cannot be turned into text")
        for step in spec["decoders"] if spec["type"] == "Sequence" else [spec]:
            self._add(step)

    def __call__(self, piece: str) -> bytes:
        if self.byte_fallback and (value := fallback_byte(piece)) is not None:
            return bytes([value])
        for old, new in self._replacements:
            piece = piece.replace(old, new)
        return self._spell(piece)

    def _add(self, step: dict[str, Any]) -> None:
        match step:
            case {"type": "ByteLevel"}:
                self._spell = _ByteLevel()
            case {"type": "ByteFallback"}:
                self.byte_fallback = True
            case {"type": "Metaspace", "replacement": str(mark)}:
                self._replacements.append((mark, " "))
                older = "always" if step.get("add_prefix_space", True) else "never"
                self.drops_first_space = step.get("prepend_scheme", older) != "never"
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self._replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                self.drops_first_space = True
            case {"type": "Fuse"}:
                pass
            case _:
                raise CheckpointError(f"{self._path}: the decoder {json.dumps(step)[:200]} is not supported")


class _ByteLevel:
    """GPT-2's alphabet: a printable character for each byte. A piece with any other character stands for itself."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        self._byte_of = {chr(byte): byte for byte in printable}
        self._byte_of |= {chr(0x100 + i): byte for i, byte in enumerate(others)}

    def __call__(self, piece: str) -> bytes:
        try:
            return bytes([self._byte_of[character] for character in piece])
        except KeyError:
            return piece.encode()


def fallback_byte(piece: str) -> int | None:
    """0x0A for "<0x0A>"; None for a piece that is not of that form."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return int(piece[3:5], 16)
        except ValueError:
            return None
    return None
