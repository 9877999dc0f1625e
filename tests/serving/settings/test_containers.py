from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

HEAD = '[model]\ncheckpoint = "."\n[tools.code_interpreter]\nfolder_bytes = 8192\n[tools.code_interpreter.containers]\n'


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("minutes = 0", "containers.minutes must be in 1 .. 10080, not 0"),
        ("files = 1001", "containers.files must be in 1 .. 1000, not 1001"),
        ("bytes = 8193", "containers.bytes must be at most folder_bytes (8192), not 8193"),
        ("tenant_containers = 0", "containers.tenant_containers must be in 1 .. 1048576, not 0"),
    ],
)
def test_what_containers_cannot_have_is_refused_by_name(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text('name = "m"\n' + HEAD + ("" if "bytes" in line else "bytes = 8192\n") + line)
    with pytest.raises(ConfigError) as refused:
        load_deployment(path)
    assert f"tools.code_interpreter.{told}" in refused.value.message


def test_a_deployment_says_how_long_and_how_much(tmp_path: Path) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text('name = "m"\n' + HEAD + "bytes = 8192\nminutes = 60")
    code = load_deployment(path).tools.code_interpreter
    assert code is not None
    assert (code.containers.minutes, code.containers.bytes, code.containers.files) == (60, 8192, 100)
