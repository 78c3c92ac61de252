"""IBM's side of ``benchmarks/regression.py``; needs NumPy, scikit-learn below 1.7 and diffprivlib.

Run by that command: reads the arrays of one archive, writes predictions for the test rows.
"""

import sys
import warnings

import numpy as np

# It warns of arguments that scikit-learn has deprecated.
warnings.simplefilter("ignore")


def main(source, result):
    from diffprivlib.models import LinearRegression

    given = np.load(source)
    predicted = []
    for seed in range(int(given["seeds"])):
        model = LinearRegression(
            epsilon=float(given["epsilon"]),
            bounds_X=(given["low"], given["high"]),
            bounds_y=tuple(map(float, given["target"])),
            random_state=seed,
        )
        predicted.append(model.fit(given["x"], given["y"]).predict(given["test_x"]))
    np.savez(result, predicted=np.stack(predicted))


if __name__ == "__main__":
    main(*sys.argv[1:])
