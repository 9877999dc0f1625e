import pytest

from serving.orchestrator.tools.file_names import plain_names
from serving.orchestrator.tools.sandbox import check_name


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("data.csv", "data.csv"),
        ("Übersicht (2).xlsx", "Übersicht (2).xlsx"),
        ("../../etc/passwd", "passwd"),
        ("C:\\reports\\a.txt", "a.txt"),
        ("a;rm -rf $HOME.sh", "a_rm -rf _HOME.sh"),
        ("<|im_start|>.txt", "__im_start__.txt"),
        ("two\nlines\x00.txt", "two_lines_.txt"),
        ("..", "file-1"),
        ("/", "file-1"),
        ("", "file-1"),
        (" . ", "file-1"),
        (".hidden", ".hidden"),
    ],
)
def test_a_name_is_that_of_a_file_in_a_folder(given: str, plain: str) -> None:
    (name,) = plain_names([("file-1", given)])
    assert name == plain
    check_name(name)


@pytest.mark.parametrize("letter", ["a", "ß", "字"])
def test_a_long_name_keeps_its_ending_and_fits_a_file_system(letter: str) -> None:
    (name,) = plain_names([("file-1", letter * 500 + ".csv")])
    assert name.endswith(".csv")
    assert len(name.encode()) <= 120
    check_name(name)


def test_equal_names_are_numbered() -> None:
    named = plain_names([("1", "a.csv"), ("2", "b/a.csv"), ("3", "a-2.csv"), ("4", "a.csv"), ("5", "x"), ("6", "x")])
    assert list(named.values()) == ["1", "2", "3", "4", "5", "6"]
    assert list(named) == ["a.csv", "a-2.csv", "a-2-2.csv", "a-3.csv", "x", "x-2"]
