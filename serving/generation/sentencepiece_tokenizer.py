"""sentencepiece's tokenizer.model, with the special tokens of tokenizer_config.json around it."""

import re
from dataclasses import replace
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from serving.errors import CheckpointError
from serving.generation.checkpoint_text import AddedToken, CheckpointText

METASPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# A serialised ModelProto { normalizer_spec { add_dummy_prefix: false } }. Appended to a model it is merged into it: in
# protobuf's wire format the last value of a field wins.
_NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"


class SentencePieceTokenizer:
    """Implements `Tokenizer`. Special tokens split the text; sentencepiece encodes what is between them.

    sentencepiece puts a space before the text (`add_dummy_prefix`). It does so once, before the first part; with
    `legacy` in tokenizer_config.json also after every special token; with `add_prefix_space: false` never. User-defined
    pieces are sentencepiece's own matter: they are found in the text whether or not tokenizer_config.json lists them.
    """

    def __init__(self, path: Path, checkpoint: CheckpointText) -> None:
        try:
            self._model = SentencePieceProcessor(model_file=str(path))
            plain = self._model.serialized_model_proto() + _NO_DUMMY_PREFIX
            self._unprefixed = SentencePieceProcessor(model_proto=plain)
        except (RuntimeError, OSError) as error:
            raise CheckpointError(f"{path}: not a sentencepiece model: {error}") from error
        if checkpoint.split_special_tokens:
            raise CheckpointError(f"{path}: split_special_tokens is offered with tokenizer.json alone")
        self.checkpoint = checkpoint
        self.replaces_each_byte = True
        has_prefix = self._model.normalize("a").startswith((METASPACE, " "))
        self.drops_first_space = has_prefix and checkpoint.add_prefix_space is not False
        self._added = self._special_pieces(path)
        pieces = self._model.get_piece_size()
        self.vocab_size = max([pieces, *(token_id + 1 for token_id in self._added)])
        self._pieces = [self._model.id_to_piece(i) for i in range(pieces)] + [""] * (self.vocab_size - pieces)
        self._bytes = [self._spell(i) for i in range(pieces)] + [b""] * (self.vocab_size - pieces)
        for token_id, token in self._added.items():
            self._pieces[token_id] = token.content
            self._bytes[token_id] = token.content.encode()
        self._id_of = {token.content: token_id for token_id, token in self._added.items()}
        self._split = re.compile("|".join(_pattern(token) for token in self._longest_first()) or r"(?!)")
        self.most_chars_per_token = max(map(len, self._pieces))
        self.bos_token_id = self._named("bos_token", self._model.bos_id())
        own = self._named("eos_token", self._model.eos_id())
        self.eos_token_ids = tuple(dict.fromkeys(([] if own is None else [own]) + list(checkpoint.eos_token_ids)))
        self._before = [self.bos_token_id] if checkpoint.add_bos_token is not False else []
        self._after = [own] if checkpoint.add_eos_token else []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = [i for i in self._before if i is not None] if add_special_tokens else []
        end = 0
        for match in self._split.finditer(text):
            ids += self._encode_part(text[end : match.start()], at_start=end == 0)
            found = match.group()  # with white space around it where the token swallows that
            ids.append(self._id_of[found if found in self._id_of else found.strip()])
            end = match.end()
        ids += self._encode_part(text[end:], at_start=end == 0)
        return ids + ([i for i in self._after if i is not None] if add_special_tokens else [])

    def is_special(self, token_id: int) -> bool:
        token = self._added.get(token_id)
        return token is not None and token.special

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def piece(self, token_id: int) -> str:
        return self._pieces[token_id] if 0 <= token_id < self.vocab_size else ""

    def _encode_part(self, text: str, *, at_start: bool) -> list[int]:
        if not text:
            return []
        prefixed = self.drops_first_space and (at_start or self.checkpoint.legacy)
        return (self._model if prefixed else self._unprefixed).encode(text)

    def _special_pieces(self, path: Path) -> dict[int, AddedToken]:
        """id -> token for all that is found in a text before sentencepiece sees it."""
        model = self._model
        added = {
            i: AddedToken(content=model.id_to_piece(i), special=True)
            for i in range(model.get_piece_size())
            if model.is_control(i) or model.is_unknown(i)
        }
        added |= {**self.checkpoint.older_added_tokens, **self.checkpoint.added_tokens}
        known = {token.content: token_id for token_id, token in added.items()}
        for name in [*self.checkpoint.special_tokens.values(), *self.checkpoint.more_special_tokens]:
            token_id = known.get(name, model.piece_to_id(name))
            if name in known or model.id_to_piece(token_id) == name:
                # What the table says of the white space beside it stays true.
                said = added.get(token_id, AddedToken(content=name, special=True))
                added[token_id] = replace(said, content=name, special=True)
        if len({token.content for token in added.values()}) != len(added):
            raise CheckpointError(f"{path}: two ids of tokenizer_config.json's added_tokens_decoder share one text")
        return added

    def _longest_first(self) -> list[AddedToken]:
        return sorted(self._added.values(), key=lambda token: -len(token.content))

    def _spell(self, token_id: int) -> bytes:
        piece = self._model.id_to_piece(token_id)
        if self._model.is_byte(token_id):
            return bytes([int(piece[3:5], 16)])
        if self._model.is_control(token_id) or self._model.is_unknown(token_id):
            return piece.encode()
        return piece.replace(METASPACE, " ").encode()

    def _named(self, name: str, own: int) -> int | None:
        content = self.checkpoint.special_tokens.get(name)
        if content in self._id_of:
            return self._id_of[content]
        return own if own >= 0 else None


def _pattern(token: AddedToken) -> str:
    # White space is taken from its beginning alone: tried from each of its characters, a long run of it takes minutes.
    before, after = r"(?:(?<!\s)\s+)?" if token.lstrip else "", r"\s*" if token.rstrip else ""
    return before + re.escape(token.content) + after
