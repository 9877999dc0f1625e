"""The rules of the house, as tests: sizes, names, and who may import whom."""

import ast
import subprocess
import sys
from collections.abc import Iterator
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


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def faults_of_size(path: Path, text: str, nodes: list[ast.AST]) -> Iterator[str]:
    lines = len(text.splitlines())
    most = MOST_LINES.get(path.relative_to(ROOT).parts[0], MOST_LINES_ELSEWHERE)
    if lines > most:
        yield f"{lines} lines, where {most} are the most that anyone reads"
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION:
                yield f"line {node.lineno}: {node.name} is longer than {MOST_LINES_OF_A_FUNCTION} lines"


def faults_of_names(path: Path, text: str, nodes: list[ast.AST]) -> Iterator[str]:
    if set(path.stem.split("_")) & EMPTY_WORDS:
        yield "its name does not say what is in it"
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name.lower().endswith(tuple(EMPTY_WORDS)):
            yield f"line {node.lineno}: {node.name} does not say what it is"


def faults_of_safety(path: Path, text: str, nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            if found := modules & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}:
                yield f"line {node.lineno}: {found} runs what it reads"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
            yield f"line {node.lineno}: {node.func.id}"
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"line {node.lineno}: a bare except"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_source_is_short_and_well_named_and_neither_unpickles_evaluates_nor_swallows(package: str) -> None:
    faults: list[str] = []
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        for rule in (faults_of_size, faults_of_names, faults_of_safety):
            faults += [f"{named(path)}: {fault}" for fault in rule(path, text, nodes)]
    assert not faults, "\n".join(faults)


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
