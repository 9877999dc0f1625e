"""An answer's text names files, however it is cut into pieces."""

import pytest

from serving.api.responses.file_mentions import MOST, FileMentions
from serving.orchestrator.tools.workspace import WorkspaceFile

NAMES = ("a.csv", "a.csv.gz", "my file.txt")
FILES = [
    WorkspaceFile(file_id=f"id of {name}", container_id="c", filename=name, bytes=1, mime_type="x") for name in NAMES
]


def mentions(text: str, step: int) -> list[tuple[str, str]]:
    """What is cited, and as which file."""
    found = FileMentions(FILES)
    cited = [one for at in range(0, len(text), step) for one in found.feed(text[at : at + step])]
    cited += found.feed("", last=True)
    return [(text[one["start_index"] : one["end_index"]], one["filename"]) for one in cited]


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("See a.csv.", [("a.csv", "a.csv")]),
        ("a.csv", [("a.csv", "a.csv")]),
        ("a.csv.gz, `a.csv`", [("a.csv.gz", "a.csv.gz"), ("a.csv", "a.csv")]),
        ("[it](sandbox:/mnt/data/my%20file.txt)", [("sandbox:/mnt/data/my%20file.txt", "my file.txt")]),
        ("/mnt/data/a.csv or ./a.csv", [("/mnt/data/a.csv", "a.csv"), ("./a.csv", "a.csv")]),
        ("xa.csv a.csvx a.csv/b other/a.csv a.csv-2 a.csv.bz2 A.CSV", []),
        ("word " * 50 + "a.csv", [("a.csv", "a.csv")]),
    ],
)
def test_a_name_counts_as_a_whole_word(text: str, cited: list[tuple[str, str]], step: int) -> None:
    assert mentions(text, step) == cited


def test_there_are_so_many_at_most() -> None:
    assert len(mentions("a.csv " * (MOST + 9), 7)) == MOST


def test_a_container_without_files_is_never_named() -> None:
    assert FileMentions([]).feed("a.csv ", last=True) == []
