"""Do the modules keep to the picture? Imports point down or sideways, never in a circle, and the heart stays pure.

`LAYERS` is the picture; a new module gets a name in it. All imports count: those inside functions and under
``if TYPE_CHECKING`` too. (Names imported from strings, as a lazy ``__init__`` does, are not seen, and may point anywhere.)
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"

# Lowest first. Write a module below src/equitar as its dotted path: "reader", "labels.coco".
LAYERS = (
    (
        "L0 values",
        "errors heap mix64 presence redact shelf topology sources",
    ),
    (
        "L1 pure",
        (
            "holes repeat counting label_presence indexed progress weights arguments quota schedule "
            "line shape leap passes window assign laid track step_plan legal plan held "
            "validation recipe stopwatch"
        ),
    ),
    (
        "L2 I/O",
        (
            "tar grouping ordinary streamed headers forward walking npz mend sidecar "
            "shard_lists foreign cross_check expected patience ranges web remote files "
            "storage leftovers spool cache opening damage ahead summary_format summary labels "
            "label_formats outside detect label_files index_plan sidecars open_shard reader block "
            "catalog selection label_recipe label_reading shard_index ledger dask_executor executors "
            "indexing estimates"
        ),
    ),
    (
        "L3 execute",
        (
            "columns feed emit partners clock order state pipeline in_turn packing ring tally build "
            "lookup stages loader agreement samplers wrapper"
        ),
    ),
    (
        "L4 edge",
        (
            "class_stats training plan_preview plots thresholds epoch_report finding "
            "plan_findings class_findings findings probing report_plots report_page lightning "
            "parquet_export bench_result bench_parts bench_plain bench_runs benching "
            "cli_completion cli_words bench_words cli_text bench_text cli_batches cli_plan cli_export "
            "cli_report cli_bench cli_index_text cli_index cli"
        ),
    ),
    (
        "the package",
        "__init__ __main__",
    ),
)
PURE_LAYERS = 2  # the first ones, L0 and L1: numpy, the standard library and each other
MAX_LINES = 300
READS_ENVIRONMENT = "detect"
NEVER_LOADED_AT_ONCE = ("torch", "webdataset")  # seconds of start-up that `equitar index` has no use for

LAYER = {module: layer for layer, (_, modules) in enumerate(LAYERS) for module in modules.split()}


def _name(path: Path) -> str:
    parts = path.relative_to(SRC / "equitar").with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


FILES = {_name(path): path for path in sorted((SRC / "equitar").rglob("*.py"))}
MODULES = sorted(FILES, key=lambda module: (LAYER.get(module, -1), module))


def _tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"), filename=str(FILES[module]))


def _imported(module: str) -> Iterator[tuple[str, int]]:
    """Yield what a module imports, as absolute dotted names, with the line."""
    full = "equitar" if module == "__init__" else f"equitar.{module}"
    package = full if FILES[module].stem == "__init__" else full.rpartition(".")[0]
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:  # what is imported from a package may be a module of it
                is_module = base.startswith("equitar") and f"{base}.{alias.name}".removeprefix("equitar.") in FILES
                yield (f"{base}.{alias.name}" if is_module else base), node.lineno


def _own(name: str) -> str | None:
    """Return the module of equitar that a dotted name stands for, if it is one."""
    if name == "equitar":
        return "__init__"
    return name.removeprefix("equitar.") if name.startswith("equitar.") else None


def _find_cycle(imports: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Return the modules of one circle, the first one again at the end, or nothing."""
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in finished:
            return []
        for imported in sorted(imports.get(module, ())):
            if cycle := visit(imported, [*path, module]):
                return cycle
        finished.add(module)
        return []

    for module in sorted(imports):
        if cycle := visit(module, []):
            return cycle
    return []


def test_every_module_has_its_layer() -> None:
    unplaced = [
        f"src/equitar/{FILES[module].relative_to(SRC / 'equitar')}" for module in MODULES if module not in LAYER
    ]
    assert not unplaced, (
        f"{', '.join(unplaced)}: no layer; add the name to `LAYERS` at the top of {Path(__file__).name}"
    )


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_or_sideways(module: str) -> None:
    upward = [
        f"{FILES[module].name}:{line} imports {name}, of {LAYERS[LAYER[own]][0]}"
        for name, line in _imported(module)
        if (own := _own(name)) is not None and LAYER.get(own, -1) > LAYER.get(module, len(LAYERS))
    ]
    assert not upward, f"{'; '.join(upward)}, but {module} is of {LAYERS[LAYER[module]][0]}"


def test_no_imports_in_a_circle() -> None:
    imports = {module: {own for name, _ in _imported(module) if (own := _own(name))} for module in MODULES}
    cycle = _find_cycle(imports)
    assert not cycle, f"a circle of imports: {' -> '.join(cycle)}"


@pytest.mark.parametrize(
    ("imports", "cycle"),
    [
        ({}, []),
        ({"a": {"b", "c"}, "b": {"c"}}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"a"}}, ["a", "a"]),
    ],
)
def test_a_circle_of_imports_is_found(imports: dict[str, set[str]], cycle: list[str]) -> None:
    assert _find_cycle(imports) == cycle


@pytest.mark.parametrize("module", [module for module in MODULES if LAYER.get(module, len(LAYERS)) < PURE_LAYERS])
def test_the_heart_imports_numpy_and_the_standard_library_only(module: str) -> None:
    allowed = {"equitar", "numpy", *sys.stdlib_module_names}
    foreign = [f"{FILES[module].name}:{line} {name}" for name, line in _imported(module) if _top(name) not in allowed]
    assert not foreign, f"{', '.join(foreign)}: L0 and L1 import numpy and the standard library only"


def _top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("module", [module for module in MODULES if module != READS_ENVIRONMENT])
def test_the_environment_is_read_in_one_module_only(module: str) -> None:
    readers = {"environ", "environb", "getenv", "getenvb"}
    reads = [
        f"{FILES[module].name}:{node.lineno}"
        for node in ast.walk(_tree(module))
        if (isinstance(node, ast.Attribute) and node.attr in readers)
        or (isinstance(node, ast.ImportFrom) and any(alias.name in readers for alias in node.names))
    ]
    assert not reads, f"{', '.join(reads)}: reads os.environ, which is for {READS_ENVIRONMENT}.py; pass a value instead"


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_too_long_to_read(module: str) -> None:
    num_lines = len(FILES[module].read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_LINES, f"{FILES[module].name} has {num_lines} lines, more than {MAX_LINES}; split it"


@pytest.mark.parametrize("imported", ["equitar", "equitar.cli"])
def test_import_loads_neither_torch_nor_webdataset(imported: str) -> None:
    program = f"import sys, {imported}; print(*(name for name in {NEVER_LOADED_AT_ONCE} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stdout.split(), f"`import {imported}` loads {ran.stdout.strip()}"
