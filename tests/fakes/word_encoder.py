"""An encoder whose vectors say which words a text has: texts that share words are near each other."""

from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from serving.engine.embedding import EmbedRequest, TextFacts
from serving.generation.text_embedder import EncoderTokenizer, TextEmbedder
from tests.fakes.embedder import CountingEmbedder

ENCODER = "word-encoder"
DIMENSIONS, BUCKETS, LONGEST = 64, 4096, 64
MARKS = ["[CLS]", "[SEP]", "[UNK]"]


class WordEmbedder(CountingEmbedder):
    """Implements `Embedder`: the mean of random vectors, one for each token id."""

    def __init__(self) -> None:
        super().__init__()
        self._words = np.random.default_rng(7).normal(size=(BUCKETS, DIMENSIONS)).astype(np.float32)

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        await super().embed(request)
        made = np.stack([self._words[list(text[1:-1]) or [0]].mean(axis=0) for text in request.texts])
        return made / np.linalg.norm(made, axis=-1, keepdims=True)


def word_text_embedder(folder: Path, words: str, embedder: CountingEmbedder | None = None) -> TextEmbedder:
    """Its vocabulary are the words of `words`; its tokenizer is kept in `folder`."""
    made = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str(words.lower())
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys([*MARKS, *(word for word, _ in made)]))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(mark, vocabulary[mark]) for mark in ("[CLS]", "[SEP]")]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextEmbedder(
        name=ENCODER,
        facts=TextFacts(dimensions=DIMENSIONS, vocab_size=BUCKETS, max_tokens=LONGEST),
        tokenizer=EncoderTokenizer(folder / "tokenizer.json"),
        embedder=embedder or WordEmbedder(),
    )
