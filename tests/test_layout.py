"""Does `src/equitar` keep to its layout? Packages import downwards only, no circle, and what plans is pure numpy.

`PACKAGES` is the picture that `docs/architecture.md` draws. All imports count: those inside functions and under
``if TYPE_CHECKING`` too. (Names imported from strings, as the lazy ``__init__`` does, are not seen.)
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

import equitar

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "equitar"

# Lowest first. A package imports those before it and the modules at the root; modules at the root import no package.
PACKAGES = (
    "planning",
    "storage",
    "tar",
    "sidecars",
    "labels",
    "indexing",
    "reading",
    "loading",
    "samplers",
    "reporting",
    "benchmarking",
    "cli",
)
MOST_MODULES = 14
PURE = "planning"
READS_ENVIRONMENT = "ranks"
FACADES = ("errors", "samplers", "stages")  # modules that are public themselves


def modules_of(folder: Path) -> dict[str, ast.Module]:
    """Return the tree of every module below a folder, by its dotted path; a package's ``__init__`` has the package's name."""
    trees = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return trees


def imports_of(tree: ast.Module, modules: Mapping[str, object]) -> Iterator[str]:
    """Yield what a module imports: modules of equitar by their path in it, others by their top name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            top, _, inner = (node.module or "").partition(".")
            for alias in node.names:
                below = f"{inner}.{alias.name}".lstrip(".")
                own = below if below in modules else inner or "__init__"
                yield own if top == "equitar" else top


def package_of(module: str) -> str:
    """Return the package of a module, "" for one at the root."""
    return module if module in PACKAGES else module.rpartition(".")[0]


def graph_of(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return which modules of equitar each module imports."""
    return {name: {used for used in imports_of(tree, trees) if used in trees} - {name} for name, tree in trees.items()}


def wrong_edges(graph: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Return the imports that point upwards."""
    order = ["", *PACKAGES]
    return [
        f"{module} imports {used}"
        for module, imported in graph.items()
        for used in sorted(imported)
        if module != "__init__" and order.index(package_of(used)) > order.index(package_of(module))
    ]


def find_cycle(graph: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Return the modules of one circle, the first one again at the end, or nothing."""
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in finished:
            return []
        for imported in sorted(graph.get(module, ())):
            if cycle := visit(imported, [*path, module]):
                return cycle
        finished.add(module)
        return []

    for module in sorted(graph):
        if cycle := visit(module, []):
            return cycle
    return []


def impure(trees: Mapping[str, ast.Module], graph: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Return what the pure package, and all that it imports, takes from neither numpy nor the standard library."""
    reached, waiting = set(), [name for name in trees if package_of(name) == PURE]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += graph[module]
    allowed = {"equitar", "numpy", *sys.stdlib_module_names, *trees}
    return sorted(
        f"{module} imports {used}"
        for module in reached
        for used in imports_of(trees[module], trees)
        if used not in allowed
    )


TREES = modules_of(SRC)
GRAPH = graph_of(TREES)


def test_packages_import_downwards_only() -> None:
    assert not wrong_edges(GRAPH)


def test_no_imports_in_a_circle() -> None:
    assert not find_cycle(GRAPH)


def test_planning_imports_numpy_and_the_standard_library_only() -> None:
    assert not impure(TREES, GRAPH)


def test_every_folder_is_a_package_of_the_layout_and_none_is_too_large() -> None:
    sizes: dict[str, int] = defaultdict(int)
    for name in TREES:
        sizes[package_of(name)] += name not in PACKAGES
    assert sizes.keys() - {""} == set(PACKAGES)
    assert {package: size for package, size in sizes.items() if package and size > MOST_MODULES} == {}


def test_no_module_hides_a_public_name() -> None:
    at_the_root = {name.partition(".")[0] for name in TREES} - {"__init__"}
    assert not at_the_root & set(equitar.__all__) - set(FACADES)


def test_a_package_says_what_it_is_for_and_nothing_else() -> None:
    for package in PACKAGES:
        [charter, *rest] = TREES[package].body
        assert ast.get_docstring(TREES[package])
        assert isinstance(charter, ast.Expr)
        assert package in ("cli", "samplers") or not rest, f"{package}/__init__.py holds its charter only"


def test_the_drawing_shows_every_package_and_its_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", page, re.MULTILINE))
    between: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for module, imported in GRAPH.items():
        if package_of(module):
            between[package_of(module)] |= {package_of(used) for used in imported} - {"", package_of(module)}
    assert {package: set(re.findall(r"`(\w+)`", row)) for package, row in rows.items()} == between


@pytest.mark.parametrize("module", [module for module in TREES if module != READS_ENVIRONMENT])
def test_the_environment_is_read_in_one_module_only(module: str) -> None:
    readers = {"environ", "environb", "getenv", "getenvb"}
    reads = [
        node.lineno
        for node in ast.walk(TREES[module])
        if (isinstance(node, ast.Attribute) and node.attr in readers)
        or (isinstance(node, ast.ImportFrom) and any(alias.name in readers for alias in node.names))
    ]
    assert not reads, (
        f"lines {reads} of {module} read os.environ, which is for {READS_ENVIRONMENT}; pass a value instead"
    )


@pytest.mark.parametrize("imported", ["equitar", "equitar.cli"])
def test_import_loads_neither_torch_nor_webdataset(imported: str) -> None:
    program = f"import sys, {imported}; print(*(name for name in ('torch', 'webdataset') if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stdout.split(), f"`import {imported}` loads {ran.stdout.strip()}"


def _tree_of(folder: Path, **sources: str) -> dict[str, ast.Module]:
    for name, source in sources.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return modules_of(folder)


def test_what_breaks_a_rule_is_found(tmp_path: Path) -> None:
    trees = _tree_of(
        tmp_path,
        urls="import numpy\n",
        planning__line="def f():\n    from equitar.planning import runs\n    from equitar.tar.table import x\n",
        planning__runs="import torch\nfrom equitar.planning.line import f\n",
        tar__table="from equitar.urls import y\n",
    )
    graph = graph_of(trees)
    assert wrong_edges(graph) == ["planning.line imports tar.table"]
    assert find_cycle(graph) == ["planning.line", "planning.runs", "planning.line"]
    assert impure(trees, graph) == ["planning.runs imports torch"]
