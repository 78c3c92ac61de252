"""The README and the pages of docs: their code runs, links hold, no public name is missing."""

import ast
import importlib
import inspect
import itertools
import pathlib
import pkgutil
import re
import shlex
import textwrap
import tomllib
import types
import warnings

import pytest
from factories import mostly_ci

import dpjax
from dpjax.cli import main
from dpjax.cli.main import COMMANDS, parser

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("decisions/*.md"))]
EVERY_PAGE = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(DOCS.glob("api/*.md")),
]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>python|sh)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Under a line of sh: what it returns where that is not 0.
EXITS = re.compile(r"# exits with (\d)")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, kind=None):
    """The blocks of code of a page that are of a kind."""
    every = BLOCK.finditer(page.read_text())
    return [block for block in every if kind in (None, block["kind"])]


def commands(block):
    """The lines of a block of sh that call dpjax, as words, and what each returns."""
    lines = block["code"].replace("\\\n", " ").splitlines()
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] == ["dpjax"]:
            exits = EXITS.search(line)
            yield words[1:], int(exits[1]) if exits else 0


def run(words):
    """What the command line returns."""
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code


def parsed(words):
    """Whether the command line knows the command and its options."""
    try:
        return bool(parser().parse_args(words))
    except SystemExit as stop:
        return stop.code == 0  # --version


WITH_CODE = [page for page in PAGES if blocks(page)]
# Pages whose trainings take longest; what they call is tested elsewhere.
LONG = ["audits", "experiments", "own-table", "quickstart", "resume", "scikit-learn"]
LONG += ["devices", "networks", "persons", "sharp-edges", "tuning", "your-own"]
LONG += ["index", "tutorial-images", "tutorial-table", "tutorial-text"]
DAILY = [page for page in WITH_CODE if page.stem not in LONG]


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_can_be_read(page):
    for block in blocks(page):
        if block["kind"] == "python":
            compile(block["code"], page, "exec")
        else:
            assert all(parsed(words) for words, _ in commands(block))


@pytest.mark.parametrize("page", mostly_ci(WITH_CODE, DAILY), ids=name_of)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.stem == "tutorial-text":  # which says so: with a fresh key its noise may hide gradients
        warnings.filterwarnings("ignore", "the noisy gradients cannot be told", RuntimeWarning)
    text, names = page.read_text(), {"__name__": page.stem}
    for block in blocks(page):
        if block["kind"] == "python":
            before = text[: block.start("code")].count("\n")  # a traceback names the page's line
            program = compile("\n" * before + block["code"], page, "exec")
            if not block["why"]:
                exec(program, names)
        else:
            for words, status in commands(block):
                assert parsed(words), words
                assert block["why"] or run(words) == status, words


def test_few_blocks_are_not_run_and_say_why():
    shown = [block for page in PAGES for block in blocks(page)]
    left_out = [block for block in shown if block["why"]]
    assert len(left_out) <= 7 < len(shown) - len(left_out)
    # `.ci/run` runs the first two blocks of the README, word for word.
    first, second = blocks(README, "sh")
    assert "dpjax run --plot" in first["code"] and "-m pytest" in second["code"]


def anchors(page):
    """What a link to a heading of a page may end in."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    for target, anchor in LINK.findall(page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_readme_is_short():
    assert len(README.read_text().split()) <= 900


@pytest.mark.parametrize(
    ("question", "page", "answer"),
    [
        ("train on a CSV file", "own-table.md", "--data people.csv"),
        ("choose delta", "privacy.md", "1/(10 n) or less"),
        ("optax chain", "optax.md", "noisy_mean"),
        ("resume a crashed run", "resume.md", "--checkpoint run-1"),
        ("add an algorithm", "your-own.md", "skeleton"),
        ("beside Opacus", "benchmarks.md", "Opacus takes 196.1 ms"),
    ],
)
def test_the_landing_page_answers_in_one_step(question, page, answer):
    rows = [line for line in (DOCS / "index.md").read_text().splitlines() if question in line]
    assert any(f"]({page}" in row for row in rows), question
    assert answer in (DOCS / page).read_text()


def test_every_command_is_on_the_page_of_commands():
    text = (DOCS / "command-line.md").read_text()
    assert all(f"<!-- help: dpjax {command} -->" in text for command in COMMANDS)


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = re.search(r"^## \[(\d.*?)\]", changelog, re.MULTILINE)
    cited = re.search(r"version = {(.*)}", README.read_text())
    citation = (ROOT / "CITATION.cff").read_text()
    assert released[1] == cited[1] == version
    assert f"\nversion: {version}\n" in citation
    assert f"## [{version}] - {re.search(r'date-released: (.*)', citation)[1]}" in changelog


def test_the_papers_that_are_cited_are_those_of_the_page():
    listed = (DOCS / "papers.md").read_text().partition("## References")[2]
    citation = (ROOT / "CITATION.cff").read_text()
    titles = re.findall(r'^  - type: article\n    title: "?(.*?)"?$', citation, re.MULTILINE)
    assert len(titles) == listed.count("\n- ") == 5
    assert all(title in listed for title in titles)


# The API reference: one page a room, and one for the names of dpjax itself.

ROOMS = {"dpjax": dpjax} | {
    f"dpjax.{found.name}": importlib.import_module(f"dpjax.{found.name}")
    for found in pkgutil.iter_modules(dpjax.__path__)
    if not found.name.startswith("_") and found.name not in ("cli", "display", "placement")
}
# Functions in a file of their own name: mkdocstrings takes the file for them.
SHADOWED = {
    f"{room}.{name}"
    for room, module in ROOMS.items()
    for name in getattr(module, "__all__", [])
    if isinstance(value := getattr(module, name), types.FunctionType)
    and value.__module__.endswith(f".{name}")
}


def reference(room):
    """The page of a room."""
    return DOCS / "api" / f"{room.removeprefix('dpjax').removeprefix('.') or 'index'}.md"


def documented(text):
    """The names that a page of the reference has entries for, as their headings show them."""
    for entry in re.finditer(r"^::: (\S+)\n((?: .*\n)*)", text, re.MULTILINE):
        heading = re.search(r"^ +heading: (\S+)$", entry[2], re.MULTILINE)
        assert entry[1] not in SHADOWED, f"name the function in the file {entry[1]}, with a heading"
        yield heading[1] if heading else entry[1]


def missing(room, text):
    """The public names of a room that its page neither documents nor links to."""
    entries = set(documented(text))
    links = set(re.findall(r"\[`(\w+)`\]\[dpjax\.[\w.]*?\1\]", text))
    names = []
    for name in getattr(ROOMS[room], "__all__", []):
        value = getattr(ROOMS[room], name)
        as_face = name in links and getattr(dpjax, name, None) is value
        as_room = room == "dpjax" and f"dpjax.{name}" in ROOMS and f"({name}.md)" in text
        if not (f"{room}.{name}" in entries or as_face or as_room):
            names.append(name)
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_an_entry(room):
    text = reference(room).read_text()
    assert missing(room, text) == []
    assert f"::: {room}\n" in text
    assert f"api/{reference(room).name}" in (ROOT / "mkdocs.yml").read_text()


def test_an_entry_that_is_taken_away_is_missed():
    text = reference("dpjax").read_text()
    assert missing("dpjax", text.replace("::: dpjax.solve\n", "")) == ["solve"]
    assert missing("dpjax", text.replace("(oracles.md)", "")) == ["oracles"]


def documented_constants():
    """The names of module-level assignments in dpjax that a string follows."""
    for path in (ROOT / "dpjax").rglob("*.py"):
        for line, after in itertools.pairwise(ast.parse(path.read_text()).body):
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", 0)]
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_every_public_name_has_a_docstring():
    constants = set(documented_constants())
    for room, module in ROOMS.items():
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            kinds = (type, types.FunctionType, types.ModuleType)
            own = isinstance(value, kinds) or hasattr(value, "__wrapped__")  # by jit
            text = value.__dict__.get("__doc__") if isinstance(value, type) else value.__doc__
            # Python itself gives data classes and named tuples their signature.
            bare = not text or text.startswith(f"{name}(")
            assert not bare if own else name in constants, f"{room}.{name}"


def test_no_argument_is_documented_by_that_of_another():
    entry = re.compile(r"^ +\*{0,2}\w+: likewise", re.MULTILINE)
    files = (ROOT / "dpjax").rglob("*.py")
    assert [str(path) for path in files if entry.search(path.read_text())] == []


def unexplained(factory, shared):
    """Arguments of a factory that neither its docstring nor the room's documents."""
    text = inspect.getdoc(factory)
    own = set(re.findall(r"^(?:  |- )(?:``)?(\w+)(?:``)?: ", text, re.MULTILINE))
    rest = inspect.signature(factory).parameters.keys() - own
    if rest and "see ``help(dpjax.algorithms)``" not in text:
        return rest
    return rest - shared


def test_every_argument_of_a_factory_is_documented_by_it_or_by_the_room():
    shared = set(re.findall(r"^- ``(\w+)``: ", dpjax.algorithms.__doc__, re.MULTILINE))
    for name, entry in dpjax.algorithms.ALL.items():
        if "Args:" in entry.factory.__doc__:
            assert unexplained(entry.factory, shared) == set(), name

    # Planted.
    def factory(objective, pace):
        """Returns one; see ``help(dpjax.algorithms)``."""

    assert unexplained(factory, shared) == {"pace"}
    assert unexplained(factory, shared - {"objective"}) == {"objective", "pace"}


def attributes(kind):
    """The attributes of a class, and of those above it, that have a docstring below them."""
    for base in kind.__mro__:
        if base.__module__.startswith("dpjax.") and inspect.getmodule(base):
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
            for node, below in itertools.pairwise(body):
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    yield ast.unparse(getattr(node, "target", node)).partition(" ")[0]


def undocumented(module):
    """Public methods without a docstring, their own or that of the member they override."""
    for name, kind in vars(module).items():
        own = isinstance(kind, type) and kind.__module__ == module.__name__
        if not own or name.startswith("_"):
            continue
        for member, value in vars(kind).items():
            written = isinstance(value, types.FunctionType | property | classmethod)
            code = getattr(value, "__func__", getattr(value, "fget", value))
            ours = str(getattr(code, "__module__", "")).startswith("dpjax")
            public = written and ours and not member.startswith("_")
            if (
                public
                and not inspect.getdoc(getattr(kind, member))
                and (member not in attributes(kind))
            ):
                yield f"{kind.__qualname__}.{member}"


def test_every_public_method_is_documented_by_itself_or_by_what_it_overrides():
    names = [found.name for found in pkgutil.walk_packages(dpjax.__path__, "dpjax.")]
    modules = [importlib.import_module(name) for name in names if "._" not in name]
    assert len(modules) > 200
    assert [each for module in modules for each in undocumented(module)] == []
    # Planted.
    planted = types.ModuleType("dpjax.planted")
    exec("class Bare:\n    def method(self):\n        pass", vars(planted))
    planted.Bare.method.__module__ = "dpjax.planted"
    assert list(undocumented(planted)) == ["Bare.method"]
