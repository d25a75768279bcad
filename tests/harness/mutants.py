"""Check that tests notice a mistake, with mutants of the product. Each mutant has one operator or constant changed.

`python -m tests.harness.mutants --seed 1 --count 300` draws mutants by the seed, as many as possible from each part of
the product. One run of `make test` records which test executes which line. Each mutant then runs the tests that execute
its line, until one fails. The last line is JSON. A mutant that no test finds is printed with its change. A mutant that
runs for longer than `--seconds` counts as found, because its tests end within this time on the unchanged code.

As a plugin of pytest (`-p tests.harness.mutants`), it replaces a module by the mutant in the environment variable.
"""

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final

import coverage

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("api", "base", "client", "operator", "agent", "kubectl")
LAYER: Final = ("tests/unit", "tests/component")
VARIABLE: Final = "BERTH_MUTANT"
"""The path, the number of the change within the file, both of the mutant that runs, with a colon between them."""
SWAPS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def _swapped(operator: Any) -> Any:
    return SWAPS[type(operator)]()


class _Changer(ast.NodeTransformer):
    """Visits what can be changed, in order, and changes one of it; annotations and strings stay."""

    def __init__(self, wanted: int | None = None) -> None:
        self.lines: list[int] = []
        self._wanted = wanted

    def _is_next(self, line: int) -> bool:
        self.lines.append(line)
        return len(self.lines) - 1 == self._wanted

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        for number, operator in enumerate(node.ops):
            if self._is_next(node.lineno):
                node.ops[number] = _swapped(operator)
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self._is_next(node.lineno):
            node.op = _swapped(node.op)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if type(node.op) in SWAPS and self._is_next(node.lineno):
            node.op = _swapped(node.op)
        return self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not) and self._is_next(node.lineno):
            return self.generic_visit(node.operand)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, int) and self._is_next(node.lineno):
            changed = (not node.value) if isinstance(node.value, bool) else node.value + 1
            return ast.copy_location(ast.Constant(changed), node)
        return node


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    """Relative to the root."""
    number: int
    """Of the change, in the order in which the file's changes are visited."""
    line: int

    @property
    def room(self) -> str:
        """Return the folder of the file, at most three levels below its package."""
        return "/".join(self.file.split("/")[:-1][:5])


def candidates() -> Iterator[Mutant]:
    """Yield all mutants of the product."""
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")) or "build" in path.relative_to(ROOT).parts:
                continue
            changer = _Changer()
            changer.visit(ast.parse(path.read_text()))
            for number, line in enumerate(changer.lines):
                yield Mutant(path.relative_to(ROOT).as_posix(), number, line)


def draw(seed: int, count: int) -> list[Mutant]:
    """Draw mutants: one from each room in turn, until there are enough."""
    chance = random.Random(seed)
    rooms: dict[str, list[Mutant]] = {}
    for mutant in candidates():
        rooms.setdefault(mutant.room, []).append(mutant)
    for mutants in rooms.values():
        chance.shuffle(mutants)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(rooms.values()):
        order = [mutants for mutants in rooms.values() if mutants]
        chance.shuffle(order)
        drawn += [mutants.pop() for mutants in order]
    return drawn[:count]


# --- the plugin -------------------------------------------------------------------------------------------------


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with one change."""

    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, _: str) -> CodeType:
        tree = _Changer(self._number).visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module of the mutant."""

    def __init__(self, file: str, number: int) -> None:
        self._path, self._number = ROOT / file, number
        parts = Path(file).with_suffix("").parts[1:]
        self._name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        loader = _Loader(name, str(self._path), self._number)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)


if VARIABLE in os.environ:
    _file, _, _number = os.environ[VARIABLE].partition(":")
    sys.meta_path.insert(0, _Finder(_file, int(_number)))


# --- the command ------------------------------------------------------------------------------------------------


def _record(data: Path) -> None:
    """Run the first layer of tests, and record which test executes which line."""
    sources = [f"--cov=berth_{package}" for package in PRODUCT]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *sources, "--cov-context=test"]
    subprocess.run(
        [*command, "--cov-report=", *LAYER], cwd=ROOT, env={**os.environ, "COVERAGE_FILE": str(data)}, check=True
    )


def _tests(recorded: coverage.CoverageData, mutant: Mutant) -> list[str]:
    """Return the tests that execute a mutant's line; for a line of the import, those that execute its file."""
    lines = recorded.contexts_by_lineno(str(ROOT / mutant.file))
    contexts = {each for each in lines.get(mutant.line, ()) if each}
    if not contexts:
        contexts = {each for of_line in lines.values() for each in of_line if each}
    return sorted({each.rpartition("|")[0] for each in contexts})


def _is_found(mutant: Mutant, tests: Sequence[str], seconds: float) -> bool:
    """Return whether a test fails."""
    if not tests:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write("\n".join(tests))
        names.flush()
        options = ["-x", "-q", "-n0", "--no-header", "-p", "no:cacheprovider", "-p", "tests.harness.mutants"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, f"@{names.name}"],
                cwd=ROOT,
                env={**os.environ, VARIABLE: f"{mutant.file}:{mutant.number}"},
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
    return done.returncode != 0


def _shown(mutant: Mutant) -> str:
    """Return a mutant's line, and the line that replaces it."""
    source = (ROOT / mutant.file).read_text()
    before = ast.unparse(ast.parse(source)).splitlines()
    after = ast.unparse(ast.fix_missing_locations(_Changer(mutant.number).visit(ast.parse(source)))).splitlines()
    changed = next(((old, new) for old, new in zip(before, after, strict=False) if old != new), ("", ""))
    return f"{mutant.file}:{mutant.line}: {changed[0].strip()} -> {changed[1].strip()}"


def main() -> None:
    """Draw mutants, and print which no test finds."""
    parser = argparse.ArgumentParser(description="Draw mutants of the product, and print which no test finds.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=600, help="longest time for the tests of one mutant")
    parser.add_argument("--recorded", type=Path, help="the file of an earlier run with contexts of coverage")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = given.recorded or Path(folder, "coverage")
        if not data.exists():
            _record(data)
        recorded = coverage.CoverageData(str(data))
        recorded.read()
        drawn = draw(given.seed, given.count)
        tests = [_tests(recorded, mutant) for mutant in drawn]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(_is_found, drawn, tests, itertools.repeat(given.seconds)))
    missed = [mutant for mutant, is_found in zip(drawn, found, strict=True) if not is_found]
    for mutant, of_mutant in zip(drawn, tests, strict=True):
        if mutant in missed:
            print(_shown(mutant), "" if of_mutant else "(no test executes it)")
    print(json.dumps({"seed": given.seed, "mutants": len(drawn), "found": sum(found), "missed": len(missed)}))


if __name__ == "__main__":
    main()
