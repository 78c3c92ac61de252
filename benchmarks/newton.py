"""DP-TR against DP-Newton with double noise, at equal epsilon, delta and neighbours, tuned alike.

Run ``python benchmarks/newton.py``: IJCNN1, logistic loss without a regularizer, zero-out. Both get
48 configurations, printed with what they reached; the best on the tuning seeds is judged on 10
others. Gaps are NOT PRIVATE, nor is the tuning, which makes the comparison fair.
"""

import argparse
import sys

from tuning import grid, judge

import dpjax

# Epsilon -> the ratio of gaps, DP-TR to DP-Newton, that must hold.
MUST_HOLD = {0.2: 1 / 2, 1.0: 1 / 4, 2.0: 1 / 5}


def newton_grid(epsilon):
    """Floors that serve an epsilon, twice as large where it is five times smaller."""
    scale = 3.8e-3 * epsilon**-0.45
    return grid(
        steps=[48, 96, 192],
        floor=[scale * factor for factor in (0.75, 1.1, 1.6, 2.4)],
        gradient_share=[0.5, 0.75],
        modification=["add", "clip"],
    )


def grids(epsilon):
    return {
        "dp-tr": grid(
            steps=[32, 48, 64, 96],
            radius=[8.0, 12.0, 18.0],
            final_radius=[0.25, 0.5],
            damping=[0.5, 1.0],
            certify=[None],
        ),
        "dp-newton": newton_grid(epsilon),
    }


def compare(epsilon):
    methods = {name: (name, configurations) for name, configurations in grids(epsilon).items()}
    objective = dpjax.objectives.logistic()
    judged = judge(methods, objective, epsilon, "zero_out", seed=2023, judged_on=10)
    ratio = judged["dp-tr"].mean() / judged["dp-newton"].mean()
    limit = MUST_HOLD.get(epsilon)
    asked = "" if limit is None else f" [at most {limit:g}]"
    print(f"\ndp-tr / dp-newton: {ratio:.3f}{asked}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(MUST_HOLD))
    arguments = parser.parse_args()
    try:
        for one in arguments.epsilon:
            compare(one)
    except FileNotFoundError as error:
        sys.exit(str(error))
