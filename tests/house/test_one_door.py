"""Noise reaches data in one function of a room, and nobody asks of which kind an object is."""

import ast
import inspect
import pathlib
import pkgutil

import jax
import pytest

import dpjax
from dpjax.accounting import Release
from dpjax.mechanisms import Noise
from dpjax.sampling import Sampler

ROOT = pathlib.Path(dpjax.__file__).parent
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))}

# Where noise is added: (file, function, method of the noise). That of objective perturbation goes
# into what is minimised, so it is drawn alone.
DOORS = {
    ("oracles/query.py", "_perturbed", "add"),
    ("oracles/minimizer.py", "secret_arguments", "alone"),
    ("transforms/noise.py", "add_noise", "add_tree"),
}
# Rooms on the way from records to a release. Algorithms draw public coins, such as kicks.
GUARDED = ("derivatives/", "driver/", "objectives/", "oracles/", "training/", "transforms/")
DRAWS = {name for name, value in vars(jax.random).items() if inspect.isfunction(value)} - {
    "key", "key_data", "key_impl", "wrap_key_data", "split", "fold_in", "clone", "PRNGKey",
}  # fmt: skip
MECHANISMS = {
    "perturb", "add_gaussian", "add_symmetric_gaussian", "add_ball", "noisy_argmax",
    "standard_normal",
}  # fmt: skip


def calls(source):
    """Yields (function around it, owner or "", name, number of arguments) of each call."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        own = set(ast.walk(function))
        for inner in functions:
            if inner is not function and inner in own:
                own -= set(ast.walk(inner))
        for node in own:
            if isinstance(node, ast.Call):
                owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                size = len(node.args) + len(node.keywords)
                yield function.name, "" if owner is None else ast.unparse(owner), name, size


def doors(files):
    """Where a noise object adds noise; of arrays ``.at[...].add`` has one argument."""
    return {
        (name, function, method)
        for name, source in files.items()
        if name.startswith(GUARDED)
        for function, _, method, size in calls(source)
        if method in {"add", "add_tree", "alone"} and size >= 3
    }


def other_draws(files):
    """What draws noise in a guarded room without asking a noise object."""
    return {
        (name, f"{owner}.{method}".lstrip("."))
        for name, source in files.items()
        if name.startswith(GUARDED)
        for _, owner, method, _ in calls(source)
        if (owner.endswith("random") and method in DRAWS) or (method in MECHANISMS)
    }


# A key is not noise: its bits make the key of one configuration, or choose it. The test of a device
# adds noise to made-up numbers.
PUBLIC = {("driver/keys.py", "jax.random.bits"), ("driver/checks.py", "perturb")}


def test_noise_is_added_in_one_function_of_oracles_and_one_of_transforms():
    assert doors(FILES) == DOORS
    assert other_draws(FILES) == PUBLIC


@pytest.mark.parametrize(
    "line",
    [
        "    return noise.add(key, value, 1.0)",
        "    return value + jax.random.normal(key)",
        "    return perturb(key, value, 1.0)",
    ],
)
def test_a_planted_draw_is_seen(line):
    files = FILES | {"oracles/planted.py": f"def answer(key, value, noise):\n{line}\n"}
    assert doors(files) != DOORS or other_draws(files) != PUBLIC


def subclasses(base):
    for each in base.__subclasses__():
        yield each
        yield from subclasses(each)


for _, module, _ in pkgutil.walk_packages(dpjax.__path__, "dpjax."):
    if ".cli" not in module and "__main__" not in module:
        __import__(module)
# Kind -> the file that defines it. That something is a noise, a sampler or a release may be asked.
KINDS = {
    each.__name__: str(pathlib.Path(inspect.getfile(each)).relative_to(ROOT))
    for base in (Noise, Sampler, Release)
    for each in subclasses(base)
    if each.__module__.startswith("dpjax.")
}
NAMES = {"mechanism", "sampling"}  # by which a kind of release is saved


def comparisons(files):
    """Comparisons of kinds outside the file of a kind: by isinstance, or by their names."""
    found = set()
    for name, source in files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                found |= {(name, kind) for kind in asked if KINDS.get(kind, name) != name}
            if isinstance(node, ast.Compare) and name not in set(KINDS.values()):
                for side in (node.left, *node.comparators):
                    if isinstance(side, ast.Attribute) and side.attr in NAMES:
                        found.add((name, side.attr))
    return found


def test_nobody_compares_kinds_of_noise_sampling_or_release():
    assert {"Gaussian", "Poisson", "BallRelease"} <= set(KINDS)
    assert comparisons(FILES) == {
        # The class that saves and loads every kind of release by these names.
        ("accounting/release.py", "mechanism")
    }


@pytest.mark.parametrize(
    "line", ["isinstance(x, Poisson)", "isinstance(x, (int, Gaussian))", 'x.sampling == "poisson"']
)
def test_a_planted_comparison_is_seen(line):
    assert comparisons({"driver/planted.py": f"def f(x):\n    return {line}\n"})


def private_imports(files):
    """Names with an underscore that are taken from a file of another room or a sibling."""
    found = set()
    for name, source in files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpjax."):
                for alias in node.names:
                    if alias.name.startswith("_"):
                        found.add((name, alias.name))
    return found


def test_nobody_imports_a_siblings_private_name():
    assert private_imports(FILES) == set()
    planted = {"oracles/x.py": "from dpjax.oracles.query import _secret\n"}
    assert private_imports(planted) == {("oracles/x.py", "_secret")}
