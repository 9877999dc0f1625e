from pathlib import Path

import pytest

from serving.cli import main
from serving.gateway.api_key import parse_key
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["keys", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_a_key_is_printed_once_listed_without_its_secret_rotated_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = f"--database={tmp_path / 'keys.sqlite'}"
    text = said(capsys, database, "create", "--tenant=acme", "--scope=usage", "--scope=inference", "--expires=90d")
    key = parse_key(text.strip())
    assert key is not None
    store = KeyStore(tmp_path / "keys.sqlite")
    record = store.verify(key)
    assert record is not None
    assert record.scopes == {Scope.USAGE, Scope.INFERENCE}
    assert record.expires == pytest.approx(record.created + 90 * 86_400, abs=60)
    listed = said(capsys, database, "list")
    assert "acme" in listed
    assert key.secret not in listed
    new = parse_key(said(capsys, database, "rotate", key.id, "--overlap=1h").strip())
    assert new is not None
    assert store.verify(new) is not None
    assert store.verify(key) is not None
    for verb, disabled in (("disable", True), ("enable", False)):
        said(capsys, database, verb, key.id)
        found = store.verify(new)
        assert found is not None
        assert found.disabled is disabled
    said(capsys, database, "revoke", key.id)
    assert store.verify(new) is None
    assert "there is no key" in said(capsys, database, "revoke", "nobody", code=1)


def test_a_list_that_is_piped_has_whole_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database, tenant = f"--database={tmp_path / 'keys.sqlite'}", "a" * 100
    said(capsys, database, "create", f"--tenant={tenant}", "--name=of the\tbuild [farm]", "--scope=admin")
    header, row = (line.split("\t") for line in said(capsys, database, "list").splitlines())
    assert header == ["id", "tenant", "name", "scopes", "created", "expires", "state"]
    assert row[1:4] + row[5:] == [tenant, "of the build [farm]", "admin", "never", "on"]


@pytest.mark.parametrize("wrong", [["--tenant=a b"], ["--tenant=anonymous"], ["--tenant=a", "--expires=soon"], []])
def test_what_makes_no_key_is_refused(tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["keys", f"--database={tmp_path / 'k'}", "create", *wrong])
    assert ended.value.code == 2


def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("notes" * 1000)
    assert "not a database of keys" in said(capsys, f"--database={tmp_path / 'notes'}", "list", code=78)


@pytest.mark.parametrize("verb", [["list"], ["rotate", "a"], ["revoke", "a"], ["disable", "a"], ["enable", "a"]])
def test_a_database_is_made_by_its_first_key_alone(
    tmp_path: Path, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no such database" in said(capsys, f"--database={tmp_path / 'typo'}", *verb, code=78)
    assert list(tmp_path.iterdir()) == []
