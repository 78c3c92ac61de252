"""Names are the field's: words that say nothing, or something else, name nothing in dpjax."""

import ast
import importlib
import inspect
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2] / "dpjax"
# What a name was, and what it is now. A word that the field uses for something else in another room
# (a table's cells, a gap between eigenvalues, a flax State) is no entry.
LEFT = {
    "any_order": "permutation_invariant",
    "slack": "rounding_error",
    "parts_of": "noisy_parts",
    "nothing_seen": "initial_score",
    "told": "with_known_order",
    "by_place": "by_position",
    "only_where": "cond_under_vmap",
    "fixed_size": "without_replacement",
    "FixedSize": "WithoutReplacement",
    "capacity": "max_batch_size",
    "coins": "bernoulli_mask",
    "Ordered": "ShuffledRecords",
    "log_range": "pure_epsilon",
    "LONGEST": "MAX_STEPS",
    "stopped": "termination_status",
    "Bound": "BoundAlgorithm",
    "Common": "AlgorithmBase",
    "Single": "SingleQueryAlgorithm",
    "arrange": "prepare_records",
    "State": "the algorithm's, as SvrgState",
    "Info": "the algorithm's, as SvrgInfo",
    "Secrets": "QueryState",
    "remember": "init",
    "renew": "refresh",
    "since": "span_start",
    "svrg_printed": "exact-anchor SVRG",
    "EVERY": "registry.ALL",
    "Worlds": "NeighbouringPair",
    "Heard": "SegmentScores",
    "Scored": "SegmentScores",
    "Found": "Results",
    "widen": "at_least_float32, to_expansion",
    "Wide": "Expansion",
    "everywhere": "replicate",
    "served": "rows_read",
    "Kept": "RunFiles",
    "Given": "TrainingData",
    "Opened": "OpenTable",
    "Draws": "UpdateSampling",
    "Chosen": "Setting",
    "one_by_one": "sequential",
    "couples": "vmap_mixes_examples",
    "loudest": "largest loss",
    "taps": "probes",
    "Outer": "Rank1",
    "Pairs": "GhostNorm",
}


def defined(tree):
    """Yields what a module names: its functions, classes, arguments, fields and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def left(text):
    """The names of a module that have a better word."""
    return sorted({name for name in defined(ast.parse(text)) if name.lstrip("_") in LEFT})


def public():
    """Name and function, or class, of what the package and its rooms export."""
    for path in [ROOT, *sorted(ROOT.iterdir())]:
        if not (path / "__init__.py").exists():
            continue
        module = importlib.import_module("dpjax" if path == ROOT else f"dpjax.{path.name}")
        for name in getattr(module, "__all__", ()):
            if inspect.isfunction(member := getattr(module, name)) or inspect.isclass(member):
                yield f"{module.__name__}.{name}", member


def vague(docstring):
    """Arguments that are documented by another's text alone."""
    return re.findall(r"^ +(\*{0,2}\w+): (?:[Ll]ikewise|[Dd]itto)\b.*$", docstring, re.MULTILINE)


def test_a_name_is_the_fields():
    found = {path.stem: left(path.read_text()) for path in ROOT.rglob("*.py")}
    assert not {name: words for name, words in found.items() if words}, (
        "see LEFT for what it is now"
    )


def test_no_module_is_called_by_a_word_that_left():
    assert not [path for path in ROOT.rglob("*.py") if path.stem.lstrip("_") in LEFT]


def test_no_argument_is_documented_by_likewise():
    found = {name: vague(member.__doc__ or "") for name, member in public()}
    assert not {name: arguments for name, arguments in found.items() if arguments}


def test_a_planted_name_is_found():
    assert left("def f(any_order): self.capacity = 1\nclass _Kept: slack: float = 0") == [
        *("_Kept", "any_order", "capacity", "slack"),
    ]
    assert vague("Args:\n  low: of it.\n  high: likewise.\n") == ["high"]
