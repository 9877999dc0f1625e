"""Text to token ids and back, for checkpoints in the hub's layout."""

from pathlib import Path
from typing import Protocol

from serving.errors import CheckpointError
from serving.generation.checkpoint_text import CheckpointText, read_checkpoint_text


class Tokenizer(Protocol):
    """Ids 0 .. vocab_size-1; a hole among them has no text. Every method may be called from several threads.

    Special-token text inside a text, such as a user's "<|im_end|>", becomes that special token in `encode`, also where
    it reached a rendered chat through a user's message. transformers and vLLM do the same, and the models' own prompt
    formats rely on it; a deployment that must keep users from writing control tokens has to filter their text.
    """

    @property
    def checkpoint(self) -> CheckpointText: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation: the tokenizer's, and those of generation_config.json and config.json."""
        ...

    @property
    def most_chars_per_token(self) -> int:
        """No token stands for more characters of input than this."""
        ...

    @property
    def drops_first_space(self) -> bool:
        """True where a decoded text loses one leading space (the one that encoding put there)."""
        ...

    @property
    def replaces_each_byte(self) -> bool:
        """How invalid UTF-8 decodes: one U+FFFD for each byte (byte fallback), or for each maximal subpart."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """`add_special_tokens` adds BOS (and EOS) where the checkpoint says so."""
        ...

    def is_special(self, token_id: int) -> bool:
        """True for the tokens that `skip_special_tokens` leaves out."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that the token stands for in the middle of a text; empty for a hole in the vocabulary."""
        ...

    def piece(self, token_id: int) -> str:
        """The vocabulary's own spelling, such as "Ġthe" or "▁the"."""
        ...


def load_tokenizer(checkpoint: Path) -> Tokenizer:
    """From `tokenizer.json`, else from sentencepiece's `tokenizer.model`. Raises CheckpointError."""
    text = read_checkpoint_text(checkpoint)
    if (checkpoint / "tokenizer.json").is_file():
        from serving.generation.json_tokenizer import JsonTokenizer

        return JsonTokenizer(checkpoint / "tokenizer.json", text)
    if (checkpoint / "tokenizer.model").is_file():
        from serving.generation.sentencepiece_tokenizer import SentencePieceTokenizer

        return SentencePieceTokenizer(checkpoint / "tokenizer.model", text)
    raise CheckpointError(f"{checkpoint}: there is neither tokenizer.json nor tokenizer.model")
