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
# measures how near each comes to the minimum and how much work that takes.
#
# A cell that uses exact records for anything but training starts with `NOT PRIVATE`. The first
# notebook explains the guarantee itself.

# %%
import dataclasses

import jax
import matplotlib.pyplot as plt
import numpy as np

import dpjax
from dpjax.reproduce.optimum import certified_optimum, exact_risks

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
# The exact minimum, by Newton's method on the exact records. `slack` is a proof of how good it
# is: no value is lower than this one by more.

# %%
# NOT PRIVATE: the exact minimum.
objective = dpjax.objectives.logistic_l2(regularization=1e-3)
optimum = certified_optimum(objective, data.examples)
start = exact_risks(objective, np.zeros((1, data.dimension)), data.examples)[0] - optimum.value
print(f"F at the minimum {optimum.value:.6f}, slack {optimum.slack:.0e}")
print(f"F at w = 0 is {start:.4f} higher; the minimum is {np.linalg.norm(optimum.params):.1f} away")

# %% [markdown]
# How much higher $F$ is at the weights that a method releases is their *excess risk*. It is what
# privacy costs, together with what the method would not have reached anyway.
#
# The helper below trains ten models of one kind, on ten seeds, at the same time. Then it looks at
# the exact records to learn the excess risks, and counts the work in *gradient evaluations*: the
# gradient of one record at one point is one, and `algorithm.evaluations` knows how many a run
# takes. We divide by $n$: a count of 1 is like reading all records once.

# %%
# NOT PRIVATE: exact excess risks.
budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-6)  # relation="zero_out"
KEYS = jax.random.split(jax.random.key(0), 10)


@jax.jit
def train(algorithm, keys):
    return jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key).params)(keys)


def measure(algorithm):
    """Work in multiples of n, and the excess risk of each seed."""
    risks = exact_risks(objective, train(algorithm, KEYS), data.examples) - optimum.value
    return algorithm.evaluations.declared / data.size, risks


def show(algorithm):
    work, risks = measure(algorithm)
    low, middle, high = np.quantile(risks, [0.1, 0.5, 0.9])
    asked = ", ".join(f"{release.count} x {release.name}" for release in algorithm.event.releases)
    print(f"{algorithm.title}: releases {asked}")
    print(f"excess risk {middle:.1e} ({low:.1e} to {high:.1e}), work {work:.1f} n")


# %% [markdown]
# Seeds that everybody knows make this page reproducible and **spoil the privacy**; for a model that
# you release, use `key=dpjax.random_key()`.
#
# ## Noise in every gradient
#
# **DP-GD** is gradient descent whose gradients carry noise. Each step reads all records. The step
# size is by default the one that theory allows for a loss as curved as this; the number of steps
# is ours.


# %%
def descent(budget, steps=128):
    return dpjax.dp_gradient_descent(objective, budget, steps=steps, **sizes)


show(descent(budget))

# %% [markdown]
# **DP-SGD** takes the gradient of a small random batch. That is cheap, but the mean over a batch
# is off by luck, not only by noise. Steps that get shorter average the luck out.


# %%
def stochastic(budget, steps=600):
    return dpjax.baselines.dp_sgd(
        objective, budget, steps=steps, batch_size=200, step_size=8.0, **sizes
    )


show(stochastic(budget))

# %% [markdown]
# **DP-SVRG** takes the luck out another way, which is called *variance reduction*. At the start of
# each epoch it asks all records for the gradient at one point, the *anchor*. At each step it asks a
# batch only how its gradient has *changed* since the anchor. Near the anchor that is little, so the
# luck of the batch matters little; and one record cannot change it much, so it needs little noise.
# Both answers carry noise of their own.


# %%
def svrg(budget, epochs=4):
    return dpjax.dp_svrg(
        objective, budget, epochs=epochs, epoch_length=60, batch_size=200, **sizes
    )


show(svrg(budget))

# %% [markdown]
# How far a run gets from its anchors is released with the rest, so anybody may look. The noise on
# the changes is in proportion to it:

# %%
reduced = svrg(budget)
solution = dpjax.solve(reduced, data, key=jax.random.key(1))
distance = solution.history.distance[: reduced.steps].reshape(4, 60).mean(axis=1)
noise = reduced.difference.stddev * distance * objective.constants.smoothness
noise = np.minimum(noise / reduced.difference.unit, reduced.difference.stddev)
print("mean distance from the anchor, by epoch:", distance.round(3))
print("noise on the changes, std:              ", noise.round(5))

# %% [markdown]
# ## Noise once, in the model
#
# **Output perturbation** finds the minimum and adds noise to it. One record can move the minimum of
# a strongly convex objective by $1 / (n \lambda)$ at most, and the noise must hide that: the same
# in every direction, also where the records hold the minimum tight.


# %%
def output(budget):
    return dpjax.baselines.output_perturbation(objective, budget, **sizes)


show(output(budget))


# %% [markdown]
# **Objective perturbation** tilts the objective by a random linear term and releases the minimum of
# that. Where many records hold the minimum tight, the tilt hardly moves it. A second noise, far
# smaller, hides that a computer does not reach a minimum exactly.


# %%
def tilted(budget):
    return dpjax.baselines.objective_perturbation(objective, budget, **sizes)


show(tilted(budget))

# %% [markdown]
# Both look for a minimum by a number of passes that is fixed beforehand, enough for *any* records:
# stopping when it is reached would tell something about them. Hence their large counts.
#
# ## Noise in gradient and Hessian
#
# **DP-TR**, of the first notebook, asks for curvature too. A Hessian is taken together with its
# gradient and counted as no further gradient. It needs only a few steps. The radii suit a minimum
# as near as this one.


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
# records, by looking at exact risks around epsilon 1, for every method that has any. That is **not
# private**; with records of your own, take public data for it.

# %%
# NOT PRIVATE: exact excess risks.
METHODS = {
    "DP-GD": (descent, ORANGE, "s", "--"),
    "DP-SGD": (stochastic, PINK, "D", ":"),
    "DP-SVRG": (svrg, BLUE, "o", "-"),
    "DP-TR": (region, GREEN, "^", "-."),
    "output perturbation": (output, "0.55", "X", ":"),
    "objective perturbation": (tilted, "black", "p", "-"),
}
BUDGETS = [dataclasses.replace(budget, epsilon=epsilon) for epsilon in (0.1, 0.3, 1.0, 3.0)]
EPSILONS = [each.epsilon for each in BUDGETS]
measured = {
    name: [measure(method(each)) for each in BUDGETS] for name, (method, *_) in METHODS.items()
}
print("median excess risk   work      " + "".join(f"epsilon {e:<7g}" for e in EPSILONS))
for name, found in measured.items():
    middles = "".join(f"{np.median(risks):<15.1e}" for _, risks in found)
    print(f"{name:22} {found[0][0]:5.1f} n  {middles}".rstrip())

# %%
figure, axes = plt.subplots(figsize=(8, 4.8))
for name, (_, color, marker, line) in METHODS.items():
    risks = [risks for _, risks in measured[name]]
    low, middle, high = np.quantile(risks, [0.1, 0.5, 0.9], axis=1)
    axes.fill_between(EPSILONS, low, high, color=color, alpha=0.15, linewidth=0)
    axes.plot(EPSILONS, middle, color=color, marker=marker, linestyle=line, label=name)
axes.axhline(start, color="0.4", linewidth=0.8, label="starting point, w = 0")
axes.set(
    xscale="log",
    yscale="log",
    xlabel=f"epsilon ({budget.relation}, delta {budget.delta:g})",
    ylabel="excess risk (mean loss)",
    title=f"randhie: median and 10-90 % of {len(KEYS)} seeds",
)
axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
axes.minorticks_off()
figure.legend(loc="outside right upper")
plt.show()
