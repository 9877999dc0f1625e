"""Page files are whole or not there, belong to one model and one layout, and leave other files alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.engine.tiers.page_files import PageFiles
from serving.errors import ConfigError

PAGE = 96
ONE, OTHER = b"fingerprint of 1", b"fingerprint of 2"


def digest(number: int) -> bytes:
    return bytes([number]) * 32


def parts(number: int) -> list[memoryview]:
    return [memoryview(bytearray([number] * 64)), memoryview(bytearray([number + 1] * 32))]


def blank() -> list[memoryview]:
    return [memoryview(bytearray(64)), memoryview(bytearray(32))]


def written(folder: Path, *numbers: int, fingerprint: bytes = ONE) -> PageFiles:
    files = PageFiles(folder, fingerprint, PAGE)
    for number in numbers:
        files.write(digest(number), parts(number))
    return files


def path_of(folder: Path, number: int) -> Path:
    (path,) = folder.rglob(f"{digest(number).hex()}.page")
    return path


def test_a_page_is_found_and_read_by_the_next_engine(tmp_path: Path) -> None:
    written(tmp_path, 1, 2).close()
    files = PageFiles(tmp_path, ONE, PAGE)
    assert sorted(files.scan()) == [digest(1), digest(2)]
    read = blank()
    assert files.read(digest(2), read)
    assert [bytes(part) for part in read] == [bytes(part) for part in parts(2)]
    assert not files.read(digest(3), blank())
    files.close()


def test_a_page_that_was_read_last_is_the_last_one_to_go(tmp_path: Path) -> None:
    files = written(tmp_path, 1, 2, 3)
    for number in (1, 2, 3):
        os.utime(path_of(tmp_path, number), (number, number))
    assert files.read(digest(1), blank())
    assert files.scan()[-1] == digest(1)
    files.close()


@pytest.mark.parametrize("at", [0, 9, 14, 40, 62, 80, 130, -1])
def test_a_flipped_bit_anywhere_is_found_and_its_file_removed(tmp_path: Path, at: int) -> None:
    files = written(tmp_path, 1)
    path = path_of(tmp_path, 1)
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 4
    path.write_bytes(damaged)
    assert files.scan() == [digest(1)]
    assert not files.read(digest(1), blank())
    assert not path.exists()
    files.close()


def test_half_a_file_and_a_page_under_another_name_are_removed(tmp_path: Path) -> None:
    files = written(tmp_path, 1, 2)
    whole = path_of(tmp_path, 1)
    half = path_of(tmp_path, 2)
    half.write_bytes(half.read_bytes()[:-1])
    whole.with_name(f"{digest(3).hex()}.page.new").write_bytes(b"begun")
    renamed = whole.rename(whole.with_name(f"{digest(4).hex()}.page"))
    assert files.scan() == [digest(4)]
    assert files.damaged == 2
    assert not half.exists()
    renamed.parent.rename(tmp_path / ONE.hex() / digest(4).hex()[:2])
    assert not files.read(digest(4), blank())
    assert not [*tmp_path.rglob("*.page*")]
    files.close()


def test_pages_of_another_model_are_removed_and_counted_and_what_is_not_a_page_stays(tmp_path: Path) -> None:
    written(tmp_path, 1, 2).close()
    note = tmp_path / ONE.hex() / "note.txt"
    kept = [note, tmp_path / "mine.page", tmp_path / "thesis" / "aa" / f"{'a' * 64}.page"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    files = PageFiles(tmp_path, OTHER, PAGE)
    assert (files.foreign, files.scan()) == (2, [])
    assert all(path.exists() for path in kept)
    files.close()


def test_a_folder_has_one_engine_at_a_time(tmp_path: Path) -> None:
    files = PageFiles(tmp_path, ONE, PAGE)
    with pytest.raises(ConfigError, match="another engine"):
        PageFiles(tmp_path, ONE, PAGE)
    files.close()
    PageFiles(tmp_path, ONE, PAGE).close()


def test_a_folder_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        PageFiles(tmp_path / "file", ONE, PAGE)


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    files = written(tmp_path)
    (tmp_path / ONE.hex() / digest(1).hex()[:2]).write_text("in the way")
    with pytest.raises(FileExistsError):
        files.write(digest(1), parts(1))
    assert not [*tmp_path.rglob("*.page*")]
    files.close()


WRITER = """
import sys
from pathlib import Path
from serving.engine.tiers.page_files import PageFiles
files = PageFiles(Path(sys.argv[1]), b"fingerprint of 1", 1 << 16)
for number in range(1 << 30):
    page = memoryview(bytearray([number % 251]) * (1 << 16))
    files.write((number % 256).to_bytes(32, "big"), [page])
    print(number, flush=True)
"""


def test_an_engine_that_is_killed_while_it_writes_leaves_whole_pages_and_the_folder_free(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(40):
            writer.stdout.readline()
        writer.kill()
    files = PageFiles(tmp_path, ONE, 1 << 16)
    found = files.scan()
    assert len(found) >= 40
    read = [memoryview(bytearray(1 << 16))]
    for name in found:
        assert files.read(name, read)
        assert len(set(bytes(read[0]))) == 1
    assert len([*tmp_path.rglob("*.new")]) == 0
    files.close()
