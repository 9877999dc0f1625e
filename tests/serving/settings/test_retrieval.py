from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

PARTS = {
    "files": '[files]\nfolder = "kept"\n',
    "embeddings": '[embeddings]\ncheckpoint = "encoder"\nname = "encoder"\n',
    "retrieval": '[retrieval]\nfolder = "stores"\n',
}


def _file(folder: Path, more: str = "", without: str = "") -> Path:
    made = folder / "deployment.toml"
    parts = "".join(part for name, part in PARTS.items() if name != without)
    made.write_text(f'name = "m"\n[model]\ncheckpoint = "model"\n{parts}{more}')
    return made


def test_a_table_names_a_folder(tmp_path: Path) -> None:
    retrieval = load_deployment(_file(tmp_path, "parse_seconds = 9\n")).retrieval
    assert retrieval is not None
    assert (retrieval.folder, retrieval.parse_seconds) == (tmp_path / "stores", 9.0)


def test_an_index_may_be_in_postgres(tmp_path: Path) -> None:
    retrieval = load_deployment(_file(tmp_path, 'index = "pgvector"\nurl = "postgresql://weft@db/weft"\n')).retrieval
    assert retrieval is not None
    assert retrieval.url == "postgresql://weft@db/weft"


@pytest.mark.parametrize(
    ("more", "without", "words"),
    [
        ("", "files", r"needs files\.folder"),
        ("", "embeddings", "needs embeddings"),
        ('index = "pgvector"\n', "", r'url is for retrieval\.index = "pgvector", which needs it'),
        ('url = "postgresql://db/weft"\n', "", r"url is for retrieval\.index"),
        ('index = "pgvector"\nurl = "redis://db"\n', "", "must begin with postgres://"),
        ('index = "pgvector"\nurl = "postgresql://db/weft"\ncache_bytes = 9\n', "", "cache_bytes is for.*sqlite"),
        ('index = "qdrant"\n', "", "qdrant.*not supported"),
        ('index = "faiss"\n', "", "must be one of"),
        ("parse_seconds = 0\n", "", r"parse_seconds must be in 1 \.\. 3600"),
        ("told_sentences = 65\n", "", "told_sentences must be in 0 .. 64, not 65"),
        ("concurrent_files = 0\n", "", "concurrent_files must be at least 1"),
    ],
)
def test_what_cannot_hold_is_refused_by_name(tmp_path: Path, more: str, without: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_deployment(_file(tmp_path, more, without))
