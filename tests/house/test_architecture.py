"""The import graph is the privacy argument: floors, sideways rules, first lines, sizes."""

import ast
import itertools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2] / "dpjax"
# The page's table, from the top floor down; rooms of one row do not import one another.
PAGE = (ROOT.parent / "docs" / "architecture.md").read_text()
ROWS = re.findall(r"^\| (`\w.*?) \|", PAGE.partition("## Four objects")[0], re.MULTILINE)
FLOORS = [re.findall(r"`(\w+)`", row) for row in reversed(ROWS)]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Optional extras, imported where they are used.
EXTRAS = {"matplotlib", "openpyxl", "pandas", "pyarrow", "safetensors", "sklearn"}
# A room that is one extra's face, and loads lazily, imports it at the top.
AT_HOME = {"estimators": {"sklearn"}}
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


def room_of(path):
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(tree):
    """Yields (dotted module, imported name or None, inside a function?)."""
    inside = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, node in inside
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module, alias.name, node in inside


def rooms_imported(tree):
    for module, name, _ in imports(tree):
        if module == "dpjax":
            yield name if name in FLOOR else "__init__"
        elif module.startswith("dpjax."):
            yield module.split(".")[1]


def violations(path, source):
    """What breaks the rules of the house in one file."""
    tree = ast.parse(source)
    room = room_of(path)
    found = []
    for other in rooms_imported(tree):
        if other != room and FLOOR[other] >= FLOOR[room]:
            found.append(f"{room} imports {other}, which is not on a lower floor")
        if room == "algorithms" and other in {"derivatives", "sampling", "datasets"}:
            found.append(f"{room} must not reach the data")
    for module, _, inside in imports(tree):
        top = module.split(".")[0]
        if inside and top not in EXTRAS:
            found.append(f"import of {module} inside a function")
        if not inside and top in EXTRAS - AT_HOME.get(room, set()):
            found.append(f"{module} is an optional extra, import it where it is used")
    if room == "accounting" and "jax.jit" in source:
        found.append("accounting runs on the host")
    return found


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_go_down(path):
    assert violations(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("algorithms", "from dpjax.derivatives import clipped_grad"),
        ("algorithms", "from dpjax.sampling import poisson"),
        ("mechanisms", "from dpjax import oracles"),
        ("accounting", "import jax\nx = jax.jit"),
        ("driver", "def f():\n    from dpjax import accounting"),
        ("cli", "import matplotlib"),
        ("estimators", "import matplotlib"),
        ("driver", "import sklearn"),
        ("estimators", "from dpjax.auditing import games"),
    ],
)
def test_the_rules_reject_a_planted_import(room, line):
    assert violations(ROOT / room / "planted.py", line)


def test_no_cycles_between_files():
    graph = {}
    for path in FILES:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        own = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if path.name == "__init__.py":
            continue  # a room's face gathers its files
        graph[own] = {
            name
            for module, item, _ in imports(ast.parse(path.read_text()))
            for name in (module, f"{module}.{item}")
            if module.startswith("dpjax")
        }
    seen, stack = set(), []

    def visit(name):
        assert name not in stack, f"cycle: {' -> '.join([*stack, name])}"
        if name in graph and name not in seen:
            stack.append(name)
            for other in graph[name]:
                visit(other)
            stack.pop()
            seen.add(name)

    for name in graph:
        visit(name)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_small_rooms_and_a_first_sentence(path):
    source = path.read_text()
    # Comments say why, and are no reason to cut a file: as in the rooms' sizes they are not
    # counted.
    assert sum(not line.lstrip().startswith("#") for line in source.splitlines()) <= 450
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring and docstring.splitlines()[0].rstrip().endswith(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            words = ast.get_docstring(node)
            body = node.end_lineno - node.lineno + 1 - (len(words.splitlines()) + 1 if words else 0)
            assert body <= 60, f"{node.name} has {body} lines"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_what_reads_raw_data_outside_the_oracles_says_so(path):
    source = path.read_text()
    first = source.splitlines()[0]
    if room_of(path) in {"diagnostics", "auditing", "comparison"} or path.name == "check.py":
        assert "NOT PRIVATE" in first
    public = [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    if room_of(path) == "diagnostics":
        assert all(name.startswith("exact_") for name in public)


def test_the_ghost_sub_package_lists_its_files_in_reading_order():
    folder = ROOT / "derivatives" / "ghost"
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    listed = re.findall(r"^\d+\. ``(\w+)``", text, re.MULTILINE)
    assert sorted(listed) == sorted({path.stem for path in folder.glob("*.py")} - {"__init__"})


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in FILES}
    assert sorted(itertools.chain(*FLOORS)) == sorted(rooms)
