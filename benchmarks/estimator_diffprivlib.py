"""IBM's side of ``benchmarks/estimator.py``; needs NumPy, scikit-learn below 1.7 and diffprivlib.

Run by that command: reads the arrays of one archive, writes decisions on the test rows to another.
"""

import sys
import time
import warnings

import numpy as np

# It warns of arguments that scikit-learn has deprecated, and of runs at its limit of iterations.
warnings.simplefilter("ignore")


def main(source, target):
    from diffprivlib.models import LogisticRegression

    given = np.load(source)
    decisions, seconds = [], []
    for seed in range(int(given["seeds"])):
        model = LogisticRegression(
            epsilon=float(given["epsilon"]),
            data_norm=1.0,
            C=float(given["c"]),
            random_state=seed,
        )
        begin = time.perf_counter()
        model.fit(given["x"], given["y"])
        seconds.append(time.perf_counter() - begin)
        decisions.append(model.decision_function(given["test_x"]))
    np.savez(target, decisions=np.stack(decisions), seconds=np.median(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
