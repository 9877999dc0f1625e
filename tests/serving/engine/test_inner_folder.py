from pathlib import Path

import pytest

from serving.engine.inner_folder import inner_folder


@pytest.mark.parametrize("name", ["", ".", "..", "../beside", "/", "a/../..", "a\0", "link"])
def test_what_is_not_inside_or_no_name_at_all_is_none(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    assert inner_folder(root, name) is None


@pytest.mark.parametrize("name", ["a", "a/b", "a/../b", "./a"])
def test_what_is_inside_is_found_whether_it_is_there_or_not(tmp_path: Path, name: str) -> None:
    assert inner_folder(tmp_path, name) == (tmp_path / name).resolve()
