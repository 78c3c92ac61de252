"""How long ``calibrate`` takes for DP-SVRG at batch 1: 70,000 inner steps on n = 35,000, epsilon 1.

Run ``python -m benchmarks.calibrate``; ``taskset -c 0`` in front of it for one core.
"""

import time

import dpjax
from benchmarks.papers.variants.exact_anchor import exact_anchor

N, STEPS = 35_000, 70_000
LIMITS = {"noisy": (dpjax.dp_svrg, 30), "exact": (exact_anchor, 120)}


def main():
    budget = dpjax.PrivacyBudget(1.0, 1 / N)
    objective = dpjax.objectives.logistic_l2(1e-3)
    print("| anchor | seconds | asked | epsilon of the noise, budget 1 |\n|---|---|---|---|")
    for anchor, (make, limit) in LIMITS.items():
        begin = time.perf_counter()
        algorithm = make(
            objective,
            budget,
            data_size=N,
            dimension=22,
            steps=STEPS,
            epoch_length=STEPS // 10,
            batch_size=1,
            step_size=0.3,
        )
        seconds = time.perf_counter() - begin
        spent = dpjax.accounting.epsilon(algorithm.event, 1 / N, "zero_out")
        print(f"| {anchor} | {seconds:.1f} | {limit} | {spent:.7f} |", flush=True)


if __name__ == "__main__":
    main()
