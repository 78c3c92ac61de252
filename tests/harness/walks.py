"""Counts the files of dpjax that a reader opens on the way from a call to what it is about.

    python tests/harness/walks.py

Each walk is made, and at each of its goals, such as the first noise that is drawn, the files on the
stack of calls are noted. Of a guarantee they are the files that hold words of its text. Prints the
walks, beside them how many files hold any function that was called until the last goal.
"""

import argparse
import ast
import inspect
import json
import pathlib
import sys
import tempfile

import jax
import numpy as np
import optax

import dpjax
from dpjax.cli import main
from dpjax.mechanisms.fixed_point import standard_normal

ROOT = pathlib.Path(dpjax.__file__).parent
BUDGET = dpjax.PrivacyBudget(1.0, 1e-5)
WORDS = 4  # so many in a row, in a file and in the text, are no chance


class Walk:
    """Notes the files that are open at each goal: a function, or a path that is opened."""

    def __init__(self, functions, paths=()):
        self.goals = {inspect.unwrap(function).__code__ for function in functions}
        self.paths = {str(path) for path in paths}
        self.reached, self.files, self.entered, self.read = {}, {}, {}, {}
        self.watched, self.run_through = False, 0
        sys.addaudithook(self.opened)

    def __enter__(self):
        jax.clear_caches()  # what is traced already is not called again
        self.watched = True
        sys.setprofile(self.called)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        self.watched = False

    def called(self, frame, event, _):
        if event == "call":
            if (file := own(frame)) and frame.f_code.co_name != "<module>":
                self.entered[file] = None
            if frame.f_code in self.goals:
                self.note(frame.f_code.co_name, frame)

    def opened(self, event, arguments):
        if self.watched and event == "open":
            path = str(arguments[0])
            if any(path.startswith(goal) for goal in self.paths):
                self.note(pathlib.Path(path).name[:5], sys._getframe(1))
            if path.startswith(f"{ROOT}/") and not path.endswith((".py", ".pyc")):
                self.read[str(pathlib.Path(path).relative_to(ROOT))] = None

    def note(self, goal, frame):
        chain = []
        while frame:
            chain += [file] if (file := own(frame)) else []
            frame = frame.f_back
        self.reached.setdefault(goal, {}).update(dict.fromkeys(reversed(chain)))
        self.files |= self.reached[goal]
        self.run_through = len(self.entered)


def own(frame):
    """The file of dpjax that a frame is in, or None."""
    path = frame.f_code.co_filename
    return path[len(str(ROOT)) + 1 :] if path.startswith(str(ROOT)) else None


def records():
    x = np.random.default_rng(0).normal(size=(200, 2))
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.where(x[:, 0] > 0, 1.0, -1.0)


def solve():
    sizes = {"data_size": 200, "dimension": 2, "steps": 2}
    algorithm = dpjax.dp_trust_region(dpjax.objectives.logistic_nonconvex(), BUDGET, **sizes)
    with Walk([standard_normal]) as walk:
        solution = dpjax.solve(algorithm, records(), key=jax.random.key(0))
    return walk, solution


def fit():
    def apply(w, x):
        return x @ w

    def logistic(score, label):
        return jax.numpy.logaddexp(0.0, -label * score)

    params = np.zeros(2, np.float32)
    how = {"batch_size": 50, "steps": 2, "params": params, "seed": 0}
    with Walk([standard_normal]) as walk:
        dpjax.fit(apply, logistic, records(), BUDGET, optax.adam(1e-3), **how)
    return walk


def run(folder):
    table, bounds, model = (folder / name for name in ("table.csv", "bounds.json", "model"))
    x, y = records()
    lines = [f"{a:.3f},{b:.3f},{int(label)}" for (a, b), label in zip(x, y, strict=True)]
    table.write_text("\n".join(["a,b,y", *lines, ""]))
    bounds.write_text(json.dumps({"a": [-1, 1], "b": [-1, 1]}))
    words = ["run", "--data", table, "--label", "y", "--classes=-1,1", "--bounds", bounds]
    goals = [argparse.ArgumentParser.add_argument, dpjax.accounting.calibrate, standard_normal]
    with Walk([*goals, dpjax.results.guarantee.statement], [table, model]) as walk:
        assert main([*map(str, words), "--steps", "2", "--seed", "0", "--save", str(model)]) == 0
    return walk


def guarantee(solution):
    with Walk([]) as walk:
        text = " ".join(str(solution.guarantee()).split())
    held = {file: None for file in walk.entered if says(ROOT / file, text)}
    walk.files = held | walk.read
    return walk


def says(path, text):
    """Whether strings of a file, its docstrings apart, have words in a row that are in a text."""
    if path.suffix != ".py":
        return True  # a template
    tree = ast.parse(path.read_text())
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {ast.get_docstring(node, False) for node in ast.walk(tree) if isinstance(node, holders)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = [] if node.value in docs else node.value.split()
            rows = (" ".join(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1))
            if any(row in text for row in rows):
                return True
    return False


def report():
    with tempfile.TemporaryDirectory() as name:
        first, solution = solve()
        walks = {"solve": first, "fit": fit(), "run": run(pathlib.Path(name))}
        walks["guarantee"] = guarantee(solution)
    for name, walk in walks.items():
        more = f"; {walk.run_through} hold functions that were called" * bool(walk.reached)
        print(f"{name}: {len(walk.files)} files{more}")
        for goal, chain in walk.reached.items():
            print(f"  to {goal}: {', '.join(chain)}")
        if not walk.reached:
            print(f"  {', '.join(walk.files)}")


if __name__ == "__main__":
    report()
