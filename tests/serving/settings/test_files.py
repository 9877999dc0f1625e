from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

HEAD = 'name = "m"\n[model]\ncheckpoint = "."\n[files]\n'


@pytest.mark.parametrize("line", ["max_file_bytes = 1", "max_tenant_batches = 2", "retain_batch_days = 0"])
def test_bounds_of_files_that_are_not_kept_are_refused_by_name(tmp_path: Path, line: str) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text(HEAD + line)
    with pytest.raises(ConfigError, match=r"needs files\.folder too") as refused:
        load_deployment(path)
    assert refused.value.param == f"files.{line.split()[0]}"
    path.write_text(f'{HEAD}{line}\nfolder = "files"')
    assert load_deployment(path).files.folder == tmp_path / "files"
