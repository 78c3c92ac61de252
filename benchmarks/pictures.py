"""Draws the pictures of the README, the guides and the tutorials, into ``docs/pictures``.

Run ``python -m benchmarks.pictures``, or with names: ``python -m benchmarks.pictures better``. The
README's is drawn from what the gallery's runs have stored, those of guides from the accounting, and
a tutorial's by running the tutorial, whose last pictures are kept. NOT PRIVATE where it says so.
"""

import argparse
import collections
import csv
import math
import os
import pathlib
import re
import statistics
import tempfile

from dpjax import plotting
from dpjax.accounting import Event, PrivacyBudget, calibrate
from dpjax.accounting.sampled_releases import PoissonRelease

ROOT = pathlib.Path(__file__).parents[1]
GALLERY = ROOT / "benchmarks" / "gallery"
PICTURES = ROOT / "docs" / "pictures"
CODE = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Inches of a panel: at the width of a phone its type has 9 pixels.
SIZE = (5.6, 3.0)


def stored(study, **fields):
    """The rows of a study's CSV whose fields have these values."""
    with open(GALLERY / study / f"{study}.csv", newline="") as file:
        for row in csv.DictReader(file):
            if all(row[name] == value for name, value in fields.items()):
                yield row


def steps_out_of_the_saddle():
    """Median steps until out at epsilon 1, of the methods that most seeds leave it by."""
    steps = collections.defaultdict(list)
    which = {"problem": "ijcnn1, welsch", "epsilon": "1", "metric": "exact_iterations_until_out"}
    for row in stored("spider", **which):
        steps[row["method"]].append(float(row["value"]))
    medians = {method: statistics.median(values) for method, values in steps.items()}
    return {method: steps for method, steps in medians.items() if math.isfinite(steps)}


def gap_over_time(method):
    """Mean gap to the optimum after each second of a training at epsilon 1: two lists."""
    which = {"problem": "ijcnn1, logistic-nonconvex", "epsilon": "1", "method": method}
    seconds, gaps = {}, collections.defaultdict(list)
    for row in stored("trust-region", **which):
        if row["step"] and row["metric"] == "seconds":
            seconds[row["step"]] = float(row["value"])
        elif row["step"] and row["metric"] == "exact_gap":
            gaps[row["step"]].append(float(row["value"]))
    steps = sorted(seconds, key=int)
    return [seconds[step] for step in steps], [statistics.mean(gaps[step]) for step in steps]


def better(path):
    """What DP-TR is better at: few steps, and so little time."""
    title = "IJCNN1, 35,000 records, epsilon 1; " + plotting.EXACT
    with plotting.panels(path, 2, 1, title, size=SIZE, legend="none") as grid:
        above, below = grid[:, 0]
        steps = steps_out_of_the_saddle()
        names = sorted(steps, key=steps.get, reverse=True)
        colors = [plotting.BLUE if name == "DP-TR" else plotting.GREY for name in names]
        above.barh(names, [steps[name] for name in names], color=colors)
        for place, name in enumerate(names):
            above.text(1.15 * steps[name], place, f"{steps[name]:g}", va="center")
        above.set(xscale="log", xlim=(1, 2500), title="Steps until out of a saddle")
        colors = {"DP-TR, dpjax, defaults": plotting.BLUE, "DP-GD, dpjax, tuned": plotting.ORANGE,
                  "DP-Adam, dpjax, defaults": plotting.PURPLE}  # fmt: skip
        for name, color in colors.items():
            seconds, gaps = gap_over_time(name)
            below.plot(seconds, gaps, color=color, marker="o", markersize=4)
            words = name.replace(", dpjax", "")
            # DP-Adam's curve is below the end of DP-GD's.
            away = (36, 6) if "DP-GD" in name else (0, -15)
            below.annotate(words, (seconds[-1], gaps[-1]), away, textcoords="offset points",
                           ha="center", color=color)  # fmt: skip
        below.set(xscale="log", yscale="log", xlabel="seconds of training")
        below.set(xlim=(3e-3, 1.0), ylim=(9e-4, 0.3))
        below.set_title("Gap to the optimum")


def belief(path):
    """How sure an attacker can be, against epsilon."""
    epsilons = [i / 50 for i in range(501)]
    title = "What an attacker can learn about one record, at most"
    with plotting.panels(path, 1, 1, title, size=SIZE) as grid:
        axes = grid[0][0]
        for prior, color in ((0.5, plotting.BLUE), (0.1, plotting.ORANGE), (0.01, plotting.GREEN)):
            odds = [math.exp(epsilon) * prior / (1 - prior) for epsilon in epsilons]
            after = [100 * one / (1 + one) for one in odds]
            axes.plot(epsilons, after, color=color, label=f"believed before: {prior:.0%}")
        axes.set(xlabel="epsilon", ylabel="believed after, in %", ylim=(0, 100))


def batch(path):
    """Noise of a mean gradient against the batch size, at one epsilon."""
    size, sizes = 60_000, [2**k for k in range(6, 14)]
    budget = PrivacyBudget(epsilon=3.0, delta=1 / (10 * size))

    def noise(batch_size, steps):
        def event(scale):
            one = PoissonRelease(
                "gradient", steps, scale, sampling_probability=batch_size / size,
                max_batch_size=size, data_size=size,
            )  # fmt: skip
            return Event((one,), budget.relation)

        return calibrate(event, budget) / batch_size

    title = "Noise of one step, 60,000 records, epsilon 3"
    with plotting.panels(path, 1, 1, title, size=SIZE) as grid:
        axes = grid[0][0]
        colors = (plotting.BLUE, plotting.ORANGE, plotting.GREEN)
        for steps, color in zip((100, 1_000, 10_000), colors, strict=True):
            noises = [noise(one, steps) for one in sizes]
            axes.plot(sizes, noises, color=color, marker="o", label=f"{steps:,} steps")
        axes.set(xscale="log", yscale="log", xlabel="batch size")
        axes.set_ylabel("noise / clip norm, each coordinate")


def tutorial(name):
    """Runs a tutorial where it may write, and keeps the pictures that it draws."""

    def draw(path):
        from dpjax.cli import main

        text = (ROOT / "docs" / f"tutorial-{name}.md").read_text()
        names, home = {"__name__": "tutorial"}, pathlib.Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for kind, code in CODE.findall(text):
                    if kind == "python":
                        exec(code, names)
                        continue
                    for line in code.replace("\\\n", " ").splitlines():
                        if line.startswith("dpjax "):
                            main(line.split()[1:])
                for picture in pathlib.Path().glob("*.png"):
                    (PICTURES / picture.name).write_bytes(picture.read_bytes())
            finally:
                os.chdir(home)

    return draw


DRAW = {"better": better, "belief": belief, "batch": batch}
DRAW |= {name: tutorial(name) for name in ("images", "table", "text")}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DRAW)}; all without")
    for name in parser.parse_args().names or DRAW:
        DRAW[name](PICTURES / f"{name}.png")
        print(f"drew {name}", flush=True)
