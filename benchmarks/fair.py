"""DP-TR, DP-STR, DP-Adam and DP-GD at equal epsilon, delta and neighbours, each tuned alike.

Run ``python benchmarks/fair.py``: IJCNN1, logistic loss with the nonconvex regularizer. Every
method gets 48 configurations, printed with what they reached; the best on the tuning seeds is
judged on 20 others. Gaps are NOT PRIVATE, nor is the tuning, which makes the comparison fair.
"""

import argparse
import sys

import numpy as np
from tuning import grid, judge

import dpjax

GRIDS = {
    "DP-TR": (
        "dp-tr",
        grid(
            steps=[20, 32, 48, 64],
            radius=[5.0, 8.0, 12.0],
            final_radius=[0.25, 0.5],
            damping=[0.5, 1.0],
            certify=[None],
        ),
    ),
    "DP-STR": (
        "dp-str",
        grid(
            batch_size=[5_000, 10_000, 15_000],
            steps=[30, 50],
            radius=[5.0, 8.0],
            final_radius=[0.25, 0.5],
            damping=[0.5, 1.0],
        ),
    ),
    "DP-Adam": (
        "dp-adam",
        grid(
            batch_size=[1_250, 2_500, 5_000],
            steps=[200, 400, 800, 1_600],
            step_size=[0.6, 1.2, 2.4, 4.8],
        ),
    ),
    "DP-GD": (
        "dp-gd",
        grid(
            steps=[192, 256, 384, 512, 768, 1_152],
            step_size=[16.0, 24.0, 32.0, 40.0, 48.0, 64.0, 80.0, 96.0],
            certify=[None],
        ),
    ),
}


def interval(ours, theirs, seed=0):
    """Ratio of the mean gaps, and its paired 95 % bootstrap interval over seeds."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, len(ours), (10_000, len(ours)))
    ratios = ours[drawn].mean(axis=1) / theirs[drawn].mean(axis=1)
    return ours.mean() / theirs.mean(), *np.quantile(ratios, [0.025, 0.975])


def compare(epsilon, relation, chosen):
    methods = {label: GRIDS[label] for label in chosen}
    objective = dpjax.objectives.logistic_nonconvex(1e-3)
    judged = judge(methods, objective, epsilon, relation, seed=2020, judged_on=20)
    print()
    for other, limit in (("DP-Adam", "reaches 1.1 or below"), ("DP-GD", "at most 1/2")):
        if "DP-TR" in judged and other in judged:
            ratio, low, high = interval(judged["DP-TR"], judged[other])
            print(
                f"DP-TR / {other}: {ratio:.2f}, paired 95 % interval {low:.2f} to {high:.2f} "
                f"[{limit}]"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--relation", default="zero_out")
    parser.add_argument("--methods", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    arguments = parser.parse_args()
    try:
        for one in arguments.epsilon:
            compare(one, arguments.relation, arguments.methods)
    except FileNotFoundError as error:
        sys.exit(str(error))
