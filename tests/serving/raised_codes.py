"""The error codes that the sources name, read from them as they are written: each `SomeError(..., code=...)`.

There is no register of codes: a code stands where its error is raised, and clients find them all in docs/errors.md.
What an expression says is found through constants, conditional expressions, and what the module's calls hand to a
parameter of a private function.
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from serving import errors
from serving.errors import RequestError, WeftError

ROOT = Path(__file__).resolve().parents[2]
KINDS = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, WeftError)}
_COMMANDS = ("bench", "commands", "offline.py", "quality")  # what a person reads in a terminal, and no client


@dataclass(frozen=True, order=True)
class Raised:
    """One code at one place. `code` is None where the source does not show it."""

    file: str  # below serving/
    code: str | None
    kind: str  # of the error, a key of KINDS


@cache
def raised_codes() -> frozenset[Raised]:
    sources = [
        Source(path)
        for path in sorted((ROOT / "serving").rglob("*.py"))
        if path.relative_to(ROOT / "serving").parts[0] not in (*_COMMANDS, "errors.py")
    ]
    constants: dict[str, set[str]] = defaultdict(set)  # by a name in capitals, wherever it is written
    for source in sources:
        for name, value in _assigned(source.tree):
            if name.isupper() and isinstance(value, ast.Constant) and isinstance(value.value, str):
                constants[name].add(value.value)
    return frozenset(raised for source in sources for raised in source.raised(constants))


class Source:
    def __init__(self, path: Path) -> None:
        self.file = str(path.relative_to(ROOT / "serving"))
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self._above = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def raised(self, constants: Mapping[str, Set[str]]) -> Iterator[Raised]:
        self._constants = constants
        for call in self._calls:
            kind = self._kind(call)
            if kind is not None:
                for code in self._codes(call, kind):
                    yield Raised(self.file, code, kind)

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    def _kind(self, call: ast.Call) -> str | None:
        """Of an error that is made, by its class or by `super().__init__` of one that is derived here."""
        if isinstance(call.func, ast.Name):
            return call.func.id if call.func.id in KINDS else None
        if ast.unparse(call.func) != "super().__init__":
            return None
        owner = self._nearest(call, ast.ClassDef)
        bases = [base.id for base in getattr(owner, "bases", ()) if isinstance(base, ast.Name)]
        return next((base for base in bases if base in KINDS), None)

    def _codes(self, call: ast.Call, kind: str) -> Iterator[str | None]:
        given = next((word.value for word in call.keywords if word.arg == "code"), None)
        if given is not None:
            yield from self._said(given)
            return
        default = inspect.signature(KINDS[kind]).parameters["code"].default
        yield default or ("invalid_value" if issubclass(KINDS[kind], RequestError) else KINDS[kind].kind)

    def _said(self, told: ast.expr) -> Iterator[str | None]:
        match told:
            case ast.Constant(value=str(code)):
                yield code
            case ast.IfExp(body=one, orelse=other):
                yield from self._said(one)
                yield from self._said(other)
            case ast.Attribute(attr="code") | ast.BoolOp(values=[ast.Attribute(attr="code"), *_]):
                return  # an error's that is passed on: it is found where that one is made
            case ast.Name(id=name):
                yield from self._named(told, name)
            case _:
                yield None

    def _named(self, told: ast.expr, name: str) -> Iterator[str | None]:
        function = self._nearest(told, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
            if name in names:
                values = list(self._handed(function, name))
                if not values or not function.name.startswith("_"):
                    yield None  # others may call it
            else:
                values = [value for target, value in _assigned(function) if target == name]
            for value in values:
                yield from self._said(value)
            if values or name in names:
                return
        known = self._constants.get(name, ())
        yield from known if len(known) == 1 else (None,)

    def _handed(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[ast.expr]:
        """What the module's calls give for this parameter, and its default."""
        names = [one.arg for one in function.args.args if one.arg != "self"]
        defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        for one, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if default is not None:
                defaults[one.arg] = default
        for call in self._calls:
            if getattr(call.func, "id", getattr(call.func, "attr", None)) != function.name:
                continue
            given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords}
            value = given.get(name, defaults.get(name))
            if value is not None:
                yield value

    def _nearest(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        above = self._above.get(node)
        while above is not None and not isinstance(above, kinds):
            above = self._above.get(above)
        return above


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
