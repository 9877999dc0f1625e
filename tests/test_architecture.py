"""The rules of the house, as tests: sizes, names, and who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("serving", "models", "sharding", "pallas_kernels", "scripts", "tests")
MOST_LINES = {"pallas_kernels": 700}
MOST_LINES_ELSEWHERE = 500
MOST_LINES_OF_A_FUNCTION = 120
EMPTY_WORDS = {"utils", "util", "common", "helper", "helpers", "misc", "manager", "base"}
USES_JAX = {
    "steps.py",
    "sampling.py",
    "sampler_rows.py",
    "programs.py",
    "executor.py",
    "kernels.py",
    "memory.py",
    "device.py",
    "device_memory.py",
    "weights_source.py",
    "encoder.py",
    "pooler.py",
    "hosts.py",
    "placement.py",
    "reduced_precision.py",
    "pipeline.py",
    "stage.py",
    "adapted_programs.py",
    "adapter_stacks.py",
    "verify.py",
    "verifier.py",
    "drafting.py",
    "eagle_head.py",
    "hidden_pages.py",
    "drafter.py",
    "draft_model.py",
    "exchange.py",
    "conversion.py",
    "compiled.py",
    "beside.py",
    "abstract_engine.py",
    "deployment_plan.py",
    "roofline.py",
}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_files_and_functions_stay_small_enough_to_read(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES.get(path.relative_to(ROOT).parts[0], MOST_LINES_ELSEWHERE)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MOST_LINES_OF_A_FUNCTION, f"{node.name} at line {node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_names_say_what_a_thing_is(path: Path) -> None:
    assert not set(path.stem.split("_")) & EMPTY_WORDS
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            assert not any(node.name.lower().endswith(word) for word in EMPTY_WORDS), node.name


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_nothing_unpickles_evaluates_or_swallows(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "cloudpickle", "dill", "marshal", "shelve"} & set(modules), node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}, node.lineno
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: a bare except"


def imports_jax(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(
            name.split(".")[0] in {"jax", "flax", "orbax", "models", "sharding", "pallas_kernels"} for name in names
        ):
            return True
    return False


def test_only_the_device_side_of_the_engine_imports_jax() -> None:
    users = {path.name for path in (ROOT / "serving").rglob("*.py") if imports_jax(path)}
    assert users == USES_JAX


def test_the_api_process_loads_no_jax() -> None:
    check = "import sys, serving.commands.api, serving.app, serving.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0


def test_every_folder_of_the_readme_exists_and_no_other() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    folders -= {name for name in folders if name.endswith(".egg-info") or name == "__pycache__"}
    assert folders == {"serving", "models", "sharding", "pallas_kernels", "configs", "tests", "scripts", "docs"}
