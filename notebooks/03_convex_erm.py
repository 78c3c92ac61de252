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
# # From a regularised logistic regression to its private versions
#
# Logistic regression with a squared penalty is as simple as training gets: the objective is convex
# and has exactly one minimum. There are many ways to make it private, which differ in what they
# ask of the records and in where the noise goes. This notebook trains one model in six of them, and
# measures how near each comes to the minimum, and how much work that takes.
#
# A cell that uses exact records for anything but training starts with `NOT PRIVATE`. The first
# notebook explains the guarantee itself.

# %%
import dataclasses
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import dpjax
from dpjax.diagnostics import exact_certified_optimum, exact_values

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams.update(
    {"figure.dpi": 80, "figure.constrained_layout.use": True, "legend.frameon": False}
)

data = dpjax.datasets.load("randhie")
sizes = {"data_size": data.size, "dimension": data.dimension}
print(f"{data.size:,} records, {data.dimension} features; one record is a {data.unit}")

# %% [markdown]
# ## The model without privacy
#
# We minimise $F(w)$, the mean logistic loss over the records plus $\frac{\lambda}{2} |w|^2$. The
# penalty makes $F$ *strongly convex*: away from the minimum it rises at least as fast as that
# parabola. Some of the methods below need this.
#
# The exact minimum, by Newton's method on the exact records. `suboptimality` is a proof of how good
# it is: no value is lower than this one by more.

# %%
# NOT PRIVATE: the exact minimum.
objective = dpjax.objectives.logistic_l2(regularization=1e-3)
optimum = exact_certified_optimum(objective, data.examples)
start = exact_values(objective, np.zeros((1, data.dimension)), data.examples)[0] - optimum.value
print(f"F at the minimum {optimum.value:.6f}, suboptimality {optimum.suboptimality:.0e}")
print(f"F at w = 0 is {start:.4f} higher; the minimum is {np.linalg.norm(optimum.params):.1f} away")

# %% [markdown]
# How much higher $F$ is at the weights that a method releases than at the minimum is their *excess
# risk*. It is what privacy costs, together with what the method would not have reached anyway.
#
# Work is counted in *gradient evaluations*: the gradient of one record at one point is one, and
# `algorithm.evaluations` knows how many a run takes. We divide by $n$, so that 1 is the work of
# reading all records once.
#
# The helpers below train ten models of one kind, on ten seeds, in one program, and look at the
# exact records to learn the excess risks.

# %%
# NOT PRIVATE: exact excess risks.
budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-6)  # relation="zero_out"
KEYS = jax.random.split(jax.random.key(0), 10)
known = {}


@jax.jit
def train(algorithm):
    return jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(KEYS)


def measure(algorithm):
    """Work in multiples of n, and the excess risk of each seed; nothing is trained twice."""
    name = algorithm.title, float(algorithm.declared.epsilon), int(algorithm.steps)
    if name not in known:
        values = exact_values(objective, train(algorithm).params, data.examples)
        known[name] = values - optimum.value
    return algorithm.evaluations.declared / data.size, known[name]


def show(algorithm):
    work, risks = measure(algorithm)
    low, middle, high = np.quantile(risks, [0.1, 0.5, 0.9])
    asked = ", ".join(f"{release.count} x {release.name}" for release in algorithm.event.releases)
    print(f"{algorithm.title} releases {asked}")
    print(f"excess risk {middle:.1e} ({low:.1e} to {high:.1e}), work {work:.1f} n")


# %% [markdown]
# Seeds that everybody knows make this page reproducible and **spoil the privacy**; for a model that
# you release, use `key=dpjax.random_key()`.
#
# ## Noise in every gradient
#
# **DP-GD** is gradient descent whose gradients carry noise. Each step reads all records, and the
# noise is set so that all steps together spend the budget. The step size is by default the one that
# theory allows for a loss as curved as this; the number of steps is ours.


# %%
def descent(budget, steps=128):
    return dpjax.dp_gradient_descent(objective, budget, steps=steps, **sizes)


show(descent(budget))

# %% [markdown]
# **DP-SGD** takes the gradient of a small random batch, by default a fourteenth of the records.
# That is cheap, but the mean over a batch is off by luck, and not by noise alone. Steps that get
# shorter average both out.


# %%
def stochastic(budget, steps=200):
    return dpjax.dp_sgd(objective, budget, steps=steps, step_size=16.0, **sizes)


show(stochastic(budget))

# %% [markdown]
# **DP-SVRG** takes the luck out another way, which is called *variance reduction*. It goes by
# epochs of a fixed number of steps. At the start of each it asks all records for the gradient at
# one point, the *anchor*. At every step it asks a small batch only how its gradient has *changed*
# since the anchor. Near the anchor that is little, so the luck of the batch matters little; and no
# record can change by much, so the change needs little noise. Both answers carry noise of their
# own. (The method's paper, by Wang, Ye and Xu, 2017, keeps the anchor's gradient exact and secret,
# and adds one larger noise to the sum of both at every step: `benchmarks/papers` has that form.)


# %%
def svrg(budget, epochs=4):
    return dpjax.dp_svrg(objective, budget, epochs=epochs, epoch_length=60, batch_size=200, **sizes)


show(svrg(budget))
print(svrg(budget).evaluations)

# %% [markdown]
# Work here is `declared`. Batches vary in size and are padded to a fixed one; `padded` counts the
# rows that really go through the machine.
#
# How far a run is from its anchor is released with the rest, so anybody may look. Later anchors are
# nearer to where the run is going, and the noise on the change gets smaller in proportion to the
# distance:

# %%
algorithm = svrg(budget)
runs = train(algorithm)
distance = runs.history.distance[:, : algorithm.steps].reshape(-1, 4, 60).mean(axis=2)
print("mean distance from the anchor in epochs 1 to 4:", np.median(distance, axis=0).round(2))

# %% [markdown]
# ## Noise once, in the model
#
# **Output perturbation** finds the minimum and adds noise to it. One record can move the minimum of
# a strongly convex objective by about $1 / (n \lambda)$ at most, and the noise must hide that: the
# same in every direction, also where the records hold the minimum tight.


# %%
def output(budget):
    return dpjax.output_perturbation(objective, budget, **sizes)


show(output(budget))


# %% [markdown]
# **Objective perturbation** tilts the objective by a random linear term and releases the minimum of
# that. Where many records hold the minimum tight, the tilt hardly moves it. A second noise, far
# smaller, hides that a computer does not reach a minimum exactly.


# %%
def tilted(budget):
    return dpjax.objective_perturbation(objective, budget, **sizes)


show(tilted(budget))

# %% [markdown]
# Both look for a minimum by a number of passes that is fixed beforehand and enough for *any*
# records: to stop when it is reached would tell something about these. Hence their large counts.
#
# ## Noise in gradient and Hessian
#
# **DP-TR**, of the first notebook, asks for curvature too, which saves it steps. A Hessian is taken
# together with its gradient and counts as no further gradient. The radii suit a minimum as near as
# this one.


# %%
def region(budget):
    return dpjax.dp_trust_region(
        objective, budget, steps=4, radius=2.0, final_radius=0.1, certify=None, **sizes
    )


show(region(budget))

# %% [markdown]
# ## Excess risk against epsilon
#
# All six at the same budgets, neighbours and seeds. The settings above were chosen on these very
# records, by looking at exact risks near epsilon 1, for every method that has any. That is **not
# private**; for records of your own, use public data that resemble them.

# %%
# NOT PRIVATE: exact excess risks.
METHODS = {
    "DP-GD": (descent, ORANGE, "s", "--"),
    "DP-SGD": (stochastic, PINK, "D", ":"),
    "DP-SVRG": (svrg, BLUE, "o", "-"),
    "DP-TR": (region, GREEN, "^", "-."),
    "output perturbation": (output, "0.5", "X", ":"),
    "objective perturbation": (tilted, "black", "p", "-"),
}
EPSILONS = (0.2, 1.0, 5.0)


def at(epsilon):
    return dataclasses.replace(budget, epsilon=epsilon)


lines = [" " * 32 + "".join(f"{f'epsilon {epsilon:g}':>14}" for epsilon in EPSILONS)]
for name, (method, *_) in METHODS.items():
    found = [measure(method(at(epsilon))) for epsilon in EPSILONS]
    middles = "".join(f"{np.median(risks):14.1e}" for _, risks in found)
    lines.append(f"{name:24}{found[0][0]:6.1f} n{middles}")
print(*lines, sep="\n")

# %%
figure, axes = plt.subplots(figsize=(9.5, 5.5))
for name, (method, color, marker, line) in METHODS.items():
    risks = [measure(method(at(epsilon)))[1] for epsilon in EPSILONS]
    low, middle, high = np.quantile(risks, [0.1, 0.5, 0.9], axis=1)
    axes.fill_between(EPSILONS, low, high, color=color, alpha=0.15, linewidth=0)
    axes.plot(EPSILONS, middle, color=color, marker=marker, linestyle=line, label=name)
axes.axhline(start, color="0.4", linewidth=0.8, label="starting point, w = 0")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="epsilon (zero_out, delta 1e-6)",
    ylabel="excess risk (mean loss)",
    title=f"randhie, six methods: median and 10-90 % of {len(KEYS)} seeds",
)
axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
axes.minorticks_off()
figure.legend(loc="outside right upper")
plt.show()

# %% [markdown]
# At epsilon 1, near which the settings were chosen, the four methods that add noise at every step
# are about level. The two that add it to the model are not, although they rest on the same
# assumption: output perturbation is far behind all others, at the smallest epsilon about as far off
# as the starting point, and objective perturbation is ahead of all at the largest.
#
# Near its minimum $F$ is a parabola: a tenth of the noise is a hundredth of the excess risk. Where
# a line falls less steeply, privacy is not all that keeps the method from the minimum: the run is
# too short, or batches are lucky and unlucky.
#
# ## Excess risk against work
#
# Now runs of several lengths, at the smallest and the largest epsilon. Each run spends the whole
# budget, so a longer one has more noise in each of its answers.

# %%
# NOT PRIVATE: exact excess risks.
LENGTHS = {
    "DP-GD": (4, 8, 16, 32, 64, 128, 256),  # steps
    "DP-SGD": (6, 20, 60, 200, 600),  # steps
    "DP-SVRG": (1, 2, 3, 4, 6, 10),  # epochs
}
lines = []
figure, panels = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True)
for axes, epsilon in zip(panels, (EPSILONS[0], EPSILONS[-1]), strict=True):
    for name, (method, color, marker, line) in METHODS.items():
        lengths = LENGTHS.get(name)
        made = [method(at(epsilon), one) for one in lengths] if lengths else [method(at(epsilon))]
        work, risks = zip(*map(measure, made), strict=True)
        low, middle, high = np.quantile(risks, [0.1, 0.5, 0.9], axis=1)
        axes.fill_between(work, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(work, middle, color=color, marker=marker, linestyle=line, label=name)
        if not lengths:
            axes.vlines(work, low, high, color=color)
        best = np.argmin(middle)
        lines.append(f"epsilon {epsilon}: {name:23}{middle[best]:.1e} at {work[best]:5.1f} n")
    axes.set(xscale="log", yscale="log", xlabel="gradient evaluations / n")
    axes.set_title(f"epsilon {epsilon:g}")
panels[0].set_ylabel("excess risk (mean loss)")
figure.suptitle(f"randhie, zero_out, delta 1e-6: median and 10-90 % of {len(KEYS)} seeds")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
plt.show()
print("least median excess risk, and its work", *lines, sep="\n")

# %% [markdown]
# On the left every line turns up again: each further answer takes budget from the others, and from
# some length on the noise that this adds outweighs the progress. More work does not help.
#
# **What variance reduction buys is work, where the budget is large.** At epsilon 5, DP-GD needs at
# least ten times as many gradients to get where DP-SVRG gets. And DP-SVRG gets below DP-SGD, whose
# line flattens although its steps get shorter: what is left there is mostly the luck of the batch,
# and that is the part which the anchor takes away.
#
# **What it does not buy:**
#
# - *Less noise.* At epsilon 0.2, the best DP-SVRG run is no better than the best of DP-GD or of
#   DP-SGD, but for the luck of ten seeds. The luck of the batch does not show beside so much noise,
#   and DP-SGD, which spends nothing on anchors, gets there with as little work.
# - *The least excess risk.* At epsilon 5, DP-GD gets about as low with more work, and objective
#   perturbation lower with still more.
# - *The least work*, where there are few weights: DP-TR, with four readings of the records, is near
#   the best of these at epsilon 0.2, and as low as any DP-SVRG run at 5. But a Hessian of $p$
#   weights has $p^2$ entries.
# - *Time* in proportion, where there are few records. Small steps have fixed costs, and the clock
#   shows far less of the saving than the count:

# %%
for algorithm in (descent(budget), svrg(budget)):
    begin = time.perf_counter()
    train(algorithm).params.block_until_ready()
    seconds = time.perf_counter() - begin
    work = algorithm.evaluations.declared / data.size
    print(
        f"{algorithm.title}: {algorithm.steps} steps, work {work:.0f} n, ten runs {seconds:.2f} s"
    )

# %% [markdown]
# ## In one line
#
# The same trainings stand behind a scikit-learn estimator. What describes the records is declared,
# never read off them: their two labels, and a bound on the norm of a row. `random_state=0` is for
# this page; leave it out for a model that you release.

# %%
from dpjax.estimators import DPLogisticRegression

x, y = data.examples
model = DPLogisticRegression(
    epsilon=1.0, delta=1e-6, classes=(-1, 1), data_norm=1.0, random_state=0
).fit(x, y)
print(*model.guarantee_.splitlines()[:2], sep="\n")
# NOT PRIVATE: accuracies on the exact records.
print(f"accuracy {model.score(x, y):.3f}; always saying +1 has {np.mean(y == 1):.3f}")

# %% [markdown]
# Accuracy tells little about records that are as hard to predict as these, which is why this page
# measures excess risk. By default the estimator trains DP-TR, appends an intercept, and takes a
# penalty that falls as $n$ and epsilon grow. `fit_intercept=False, regularization=1e-3` makes it
# the model of this page, and `solver="dp-gd"` or `"dp-svrg"` another training.
