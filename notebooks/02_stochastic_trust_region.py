# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A batch instead of everything
#
# DP-TR reads every record at every step. DP-STR, its stochastic form, reads a random batch, and a
# step then costs what the batch costs, however many records there are. This notebook shows what
# that buys, what it costs in noise, and what would happen if a run stopped early.
#
# A cell that uses exact records for anything but training starts with `NOT PRIVATE`. The first
# notebook explains the guarantee itself.

# %%
import math
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import dpjax

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams.update(
    {"figure.dpi": 80, "figure.constrained_layout.use": True, "legend.frameon": False}
)

data = dpjax.datasets.load("randhie")
objective = dpjax.objectives.logistic_nonconvex(regularization=1e-3)
budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-6)
sizes = {"data_size": data.size, "dimension": data.dimension}

whole = dpjax.dp_trust_region(objective, budget, certify=None, **sizes)
batches = dpjax.dp_stochastic_trust_region(objective, budget, **sizes)
solution = dpjax.solve(batches, data, key=jax.random.key(0))
print(solution.guarantee())

# %% [markdown]
# `jax.random.key(0)` makes this page reproducible and **spoils the privacy**; for a model that
# you release, use `key=dpjax.random_key()`.
#
# ## Why a batch is cheap in privacy too
#
# Two forces act on the noise. A batch of $b$ records out of $n$ moves its mean by $1/b$ rather
# than $1/n$ for each record in it, which asks for *more* noise. But whoever looks at the answer
# does not know who was in the batch, which asks for *less*: privacy is amplified by sampling.
# With exact accounting the two nearly cancel. The paper accounted by a chain of looser bounds,
# and its noise, even with the factor $T$ that its formula lost put back, is many times larger.
#
# The picture has the noise that each batch size needs, at the same $\varepsilon$, $\delta$,
# neighbours and number of steps. Nothing here touches a record.

# %%
STEPS = 40
# 1/n, as in the paper, and its neighbours: one record replaced by another.
papers = dpjax.PrivacyBudget(1.0, 1 / data.size, "replace_one")
fractions = np.array([0.01, 0.03, 0.1, 0.2, 0.5])


def noise(batch_size, **more):
    made = dpjax.dp_stochastic_trust_region(
        objective, papers, steps=STEPS, batch_size=int(batch_size), **sizes, **more
    )
    return float(made.queries[0].stddev)


# The paper's sigma of algorithm 2, with the factor T that its print lacks, whatever the batch.
logs = math.log(5 * STEPS / papers.delta) * math.log(2 / papers.delta)
paper_s = 16 * objective.constants.lipschitz * math.sqrt(STEPS * logs) / data.size
curves = {
    "exact accounting, Poisson batches": [noise(b) for b in fractions * data.size],
    "exact accounting, batches of fixed size": [
        noise(b, sampling="without_replacement") for b in fractions * data.size
    ],
    "the paper's noise, corrected": [paper_s] * len(fractions),
}
everything = noise(data.size)
figure, axes = plt.subplots(figsize=(7, 4.2))
looks = zip((BLUE, GREEN, ORANGE), "o^s", strict=True)
for (label, values), (color, marker) in zip(curves.items(), looks, strict=True):
    axes.plot(100 * fractions, values, color=color, marker=marker, label=label)
axes.axhline(everything, color="0.4", linestyle="--", label="all records at every step (DP-TR)")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="batch (% of the records)",
    ylabel="noise on the mean gradient, std (loss per unit of weight)",
    title=f"Noise at equal privacy: {STEPS} steps, epsilon 1, replace_one",
)
axes.legend()
plt.show()
tight, papers_own = (values[3] / everything for values in list(curves.values())[::2])
print(f"at 20 % of the records: {tight:.2f} times the noise of all; the paper's {papers_own:.0f}")

# %% [markdown]
# From a few percent of the records on, the noise of Poisson batches is that of reading everything.
# Below, it rises: with few records in a batch the noise must hide a contribution of $1/b$.
#
# ## Gap against work
#
# The gap is the exact objective at the released weights, minus its minimum.

# %%
# NOT PRIVATE: the exact minimum, in float64, from 0 and nine random starts.
with jax.enable_x64(True):
    examples = tuple(np.asarray(leaf, np.float64) for leaf in data.examples)

    def exact(w):
        return dpjax.diagnostics.exact_objective(objective, w, examples)

    value_and_gradient = jax.jit(jax.value_and_grad(exact))
    rng = np.random.default_rng(0)
    starts = np.vstack([np.zeros(data.dimension), 10 * rng.normal(size=(9, data.dimension))])
    found = [
        minimize(value_and_gradient, w, jac=True, method="L-BFGS-B", tol=1e-12) for w in starts
    ]
    minimum = min(result.fun for result in found)


@jax.jit
def runs(algorithm, keys):
    return jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(keys)


def gaps(weights):
    with jax.enable_x64(True):
        return np.asarray(jax.lax.map(exact, np.asarray(weights, np.float64))) - minimum


# %% [markdown]
# One batch size after another, 20 seeds each, with the schedule of radii that suits records as
# easy as these: their minimum is 2.2 away from the start. (The schedule was chosen on these very
# records, for both methods alike: fine for a comparison, and one more reason why these cells are
# not private.)

# %%
# NOT PRIVATE: exact gaps.
KEYS = jax.random.split(jax.random.key(1), 20)
schedule = {"radius": 2.0, "final_radius": 0.1}
rows = {}
for share in (0.01, 0.05, 0.2, 1.0):
    one = dpjax.dp_stochastic_trust_region(
        objective, budget, batch_size=round(share * data.size), steps=STEPS, **schedule, **sizes
    )
    rows[share] = gaps(runs(one, KEYS).params)
    low, middle, high = np.quantile(rows[share], [0.1, 0.5, 0.9])
    print(f"batch {share:4.0%}: median gap {middle:.1e} ({low:.1e} to {high:.1e})")

figure, axes = plt.subplots(figsize=(7, 4.2))
passes = np.array(list(rows)) * STEPS
low, middle, high = np.quantile(list(rows.values()), [0.1, 0.5, 0.9], axis=1)
axes.fill_between(passes, low, high, color=BLUE, alpha=0.2, linewidth=0)
axes.plot(passes, middle, color=BLUE, marker="o", label="median, 10-90 % of 20 seeds")
last = (passes[-1], middle[-1])
axes.annotate("all records\n(DP-TR)", last, (-62, 22), textcoords="offset points")
axes.set(
    xscale="log",
    yscale="log",
    xlabel=f"records read in the whole run (multiples of n; {STEPS} steps)",
    ylabel="gap to the minimum (mean loss)",
    title="randhie, epsilon 1, zero_out: what reading less costs",
)
axes.legend()
plt.show()

# %% [markdown]
# A fifth of the reads costs little, a hundredth much: to the noise *and* to the luck of the batch,
# which no budget removes. These data are small; on half a million records a batch of 2 % is enough
# (docs/benchmarks.md has the numbers).
#
# ## Time follows the batch, not the data
#
# The draw too: what is drawn are the gaps between the records of a batch, so that 2,000 of
# 1,000,000 records are drawn about as fast as 2,000 of 20,000.

# %%
rng = np.random.default_rng(0)
for n in (20_000, 1_000_000):
    x = rng.standard_normal((n, 10), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x @ np.ones(10) > 0, 1, -1).astype(np.float32)
    made = tuple(map(jnp.asarray, (x, y)))
    spent = []
    for factory, more in (
        (dpjax.dp_stochastic_trust_region, {"batch_size": 2_000}),
        (dpjax.dp_trust_region, {"certify": None}),
    ):
        algorithm = factory(objective, budget, data_size=n, dimension=10, steps=STEPS, **more)
        dpjax.solve(algorithm, made, key=jax.random.key(0)).params.block_until_ready()
        begin = time.perf_counter()
        dpjax.solve(algorithm, made, key=jax.random.key(0)).params.block_until_ready()
        spent.append(1e3 * (time.perf_counter() - begin))
    print(f"n = {n:9,}: DP-STR with batches of 2,000 {spent[0]:5.0f} ms, DP-TR {spent[1]:6.0f} ms")

# %% [markdown]
# ## Batches that grow
#
# Early steps need less precision than late ones. A sequence of batch sizes splits the steps
# evenly; all stages share one noise multiplier, so the noise on the mean falls as the batch
# grows. The event books each stage as what it is:

# %%
growing = dpjax.dp_stochastic_trust_region(
    objective,
    budget,
    batch_size=[round(share * data.size) for share in (0.02, 0.06, 0.2)],
    steps=STEPS,
    **schedule,
    **sizes,
)
for release in growing.event.releases:
    print(
        f"{release.count} answers on {release.sampling_probability:.0%} of the records, "
        f"noise {release.stddev:.1e}"
    )
# NOT PRIVATE: exact gaps.
weights = runs(growing, KEYS).params
print(f"median gap {np.median(gaps(weights)):.1e}, records read {0.0933 * STEPS:.1f} n")

# %% [markdown]
# ## What stopping early would do
#
# The paper's rule stops when the subproblem's dual variable falls below $\sqrt{\alpha \rho}$, a
# sign of an $\alpha$-second-order stationary point. It looks only at released values, so it costs
# nothing. What it does *not* do is lower the epsilon: the noise was scaled for all planned steps,
# and a guarantee that depended on when the run happened to stop would be another statement, with
# another proof. Below, its own radius and rule at several $\alpha$, for DP-TR.

# %%
# NOT PRIVATE: exact gaps.
alphas = (0.1, 0.03, 0.01, 0.003, 0.001)
stops, reached = [], []
for alpha in alphas:
    rule = dpjax.paper_schedule(objective, alpha=alpha)
    rule["steps"] = STEPS  # theory's own, 6 sqrt(rho) ln 2 / alpha^1.5, is up to 42,000
    early = dpjax.dp_trust_region(objective, budget, certify=None, **rule, **sizes)
    ended = runs(early, KEYS)
    stops.append(np.asarray(ended.steps))
    reached.append(gaps(ended.params))
    print(
        f"alpha {alpha:5}: stops after {np.median(stops[-1]):2.0f} of {STEPS} steps (median), "
        f"gap {np.median(reached[-1]):.1e}, epsilon {max(ended.epsilon(budget.delta)):.3f}"
    )

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
for axes, values, color, marker, label in (
    (left, stops, PINK, "D", "steps taken"),
    (right, reached, ORANGE, "s", "gap to the minimum (mean loss)"),
):
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9], axis=1)
    axes.fill_between(alphas, low, high, color=color, alpha=0.2, linewidth=0)
    axes.plot(alphas, middle, color=color, marker=marker, label="median, 10-90 % of 20 seeds")
    axes.set(xscale="log", xlabel="alpha of the stopping rule", ylabel=label)
left.axhline(STEPS, color="0.4", linestyle="--", label="all planned steps")
usual = np.median(rows[1.0])
right.axhline(usual, color="0.4", linestyle="--", label="all steps, shrinking radius")
right.set_yscale("log")
for axes in (left, right):
    axes.legend()
figure.suptitle("The paper's stopping rule on randhie: the epsilon is 1 wherever it stops")
plt.show()

# %% [markdown]
# At the $\alpha$ for which the theory was written the rule fires at once, far from the minimum: a
# gradient norm of 0.1 is simply not small for this loss. A smaller $\alpha$ waits longer, and its
# small radius $\sqrt{\alpha/\rho}$ suits these records, whose minimum is close; where it is far,
# such steps do not get there. Hence dpjax takes all steps by default, with a radius that shrinks on
# a public schedule.
#
# If few steps are enough, plan few: `steps=10` spends the same epsilon on ten answers, each with
# half the noise of one of forty.
