"""The contract suite of algorithms, ``tests/contracts``, of the papers' variants and forms."""

import dataclasses
import functools
import importlib.util
import pathlib
import sys

import pytest

import dpjax
from benchmarks.papers.variants.registry import VARIANTS
from dpjax.accounting import ACCOUNTANTS, RELATIONS
from dpjax.algorithms import ALL, Example

TESTS = pathlib.Path(__file__).parents[3] / "tests"
SPIDERS = ("spider-fixed", "spider-boost", "gauss-psgd")
_PASS = {"smoothness": 1.0, "hessian_lipschitz": 1.0, "initial_gap": 1.0, "step_size": 0.3}
_ABSENT = {("add_or_remove_one", way): "reads each record at most once" for way in ACCOUNTANTS}
_UNPROVEN = {("replace_one", way): "no proven accounting" for way in ACCOUNTANTS}
_UNPROVEN |= {(relation, "rdp"): "an exact anchor has no" for relation in RELATIONS}
_BATCHES = {"batch_size": 32, "hessian_batch_size": 16, "release": "separate"}
# Not Frank-Wolfe, which releases places: the suite's laws are of sums with Gaussian noise.
# The last is a form of dpjax's own that runs other code than its defaults do.
ROWS = {name: row for name, row in VARIANTS.items() if name != "frank-wolfe"} | {
    "dp-str-separate": dataclasses.replace(ALL["dp-str"], example=Example(settings=_BATCHES))
}
# What ``tests/harness/factories.py`` says of dpjax's own algorithms, of these.
OURS = {
    "ENTRIES": ROWS,
    "FACTORIES": {name: row.factory for name, row in ROWS.items()},
    "EXAMPLES": {name: row.example for name, row in ROWS.items()},
    "ANCHORED": ["svrg-exact"],
    "SPIDERS": SPIDERS,
    # SpiderBoost is Spider with other numbers, and tested as such.
    "SAME_PROGRAM": ("spider-boost",),
    "SAME_QUERY": ("gauss-psgd",),
    "DELTA_ONLY": (),
    "PLAIN": {
        **{name: {"clip_norm": 1.0} | _PASS for name in SPIDERS},
        "svrg-exact": {"clip_norm": 1.0, "smoothness": 1.0, "step_size": 0.08},
        "dp-str-separate": {"clip_norm": 1.0, "hessian_clip_norm": 1.0},
    },
    "refuses": {
        "svrg-exact": _UNPROVEN,
        "dp-str-separate": {("replace_one", "rdp"): "no Renyi bound is known"},
        **dict.fromkeys(SPIDERS, _ABSENT),
    }.__getitem__,
}
# The first, since they pass on arguments that they do not name themselves; the second gives a query
# an ``answer`` of its own, which is refused of one that is not dpjax's.
LEFT_OUT = {
    "test_factories_share_one_signature",
    "test_c45_c46_c51_nothing_but_noisy_answers_reaches_a_solution",
}
NOT_OF = {
    # Others are in test_exact_anchor.py: what a drawn record adds is more than a clip norm, and
    # batches of 20 records would be all that there are.
    "svrg-exact": {
        "test_the_noise_added_is_the_noise_accounted",
        "test_the_result_has_the_dtype_of_the_parameters_whatever_the_data",
    },
}


def load(name):
    """A test file of dpjax as a module of its own."""
    spec = importlib.util.spec_from_file_location(
        f"{name}_of_variants", next(TESTS.rglob(f"{name}.py"))
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_variants():
    """The tests that run once for each algorithm, of the variants."""
    factories, held = load("factories"), sys.modules.get("factories")
    assert OURS.keys() <= vars(factories).keys()
    vars(factories).update(OURS)
    sys.modules["factories"] = factories
    try:
        contract = vars(load("test_contract"))
    finally:
        sys.modules.pop("factories")
        if held is not None:
            sys.modules["factories"] = held
    contract["nearly_quiet"] = functools.partial(_nearly_quiet, contract["nearly_quiet"])
    return {
        name: test
        for name, test in contract.items()
        if name.startswith("test_") and name not in LEFT_OUT and _is_of_variants(test)
    }


def _nearly_quiet(usual, name):
    # A mixture has no Renyi bound, and the composition of its losses takes no such epsilon.
    return (dpjax.PrivacyBudget(100.0, 1e-4), {}) if name == "svrg-exact" else usual(name)


def _is_of_variants(test):
    """Whether all algorithms that a test names are variants; some tests name dpjax's own."""
    marks = getattr(test, "pytestmark", [])
    for place, mark in enumerate(marks):
        if mark.name == "parametrize" and mark.args[0] == "name":
            given = [getattr(name, "values", (name,))[0] for name in mark.args[1]]
            names = [name for name in given if not _is_left_out(test, name)]
            marks[place] = pytest.mark.parametrize("name", names).mark
            return set(names) <= ROWS.keys()
    return False


def _is_left_out(test, name):
    return test.__name__ in NOT_OF.get(name, ())


globals().update(of_variants())


def test_the_suite_is_not_empty():
    assert sum(name.startswith("test_") for name in globals()) > 20
