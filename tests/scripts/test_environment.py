"""scripts/environment.sh, as other scripts source it."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_search_path_for_cd_does_not_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    sourced = 'set -euo pipefail; source scripts/environment.sh; printf "%s\\n" "$root" "$PWD"'
    for search in (str(tmp_path), f"{ROOT}:{tmp_path}"):
        environment = {**os.environ, "CDPATH": search}
        done = subprocess.run(["bash", "-c", sourced], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert (done.stdout.splitlines(), done.returncode) == ([str(ROOT), str(ROOT)], 0), done.stderr


def test_bytecode_is_kept_whatever_the_shell_says_of_it() -> None:
    sourced = 'source scripts/environment.sh; echo "${PYTHONDONTWRITEBYTECODE-unset}"'
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", sourced], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "unset\n", done.stderr
