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
# # A private trust region
#
# You train a model on records about people, and you will publish the model, its training curve, or
# both. This notebook trains with a guarantee that none of it gives any one record away, reads that
# guarantee, and measures what it costs in accuracy of the optimum.
#
# You need to know machine learning, and nothing about privacy. A cell that uses the exact records
# for anything but training starts with `NOT PRIVATE`: it is there because we want to check our
# claims on data that is public anyway. With data of your own, such cells stay away.

# %%
import dataclasses
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

import dpjax

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams.update({"figure.constrained_layout.use": True, "legend.frameon": False})

# %% [markdown]
# ## The records that must not leak
#
# The RAND Health Insurance Experiment gave families different insurance plans and counted their
# visits to the doctor. One record is one person in one year: plan, health, and whether there was
# any outpatient visit. We predict the visit.

# %%
info = next(info for info in dpjax.datasets.describe() if info.name == "randhie")
data = dpjax.datasets.load(info.name)
print(f"{info.rows:,} records, {info.features} features; one record is a {info.unit}")
print(f"label:  {info.task}\nsource: {info.source}\nnote:   {info.note}")

# %% [markdown]
# Features were scaled by *declared* ranges, then each row by its own norm. A range measured on the
# data would itself be an unprotected release.
#
# The model is logistic regression with a bounded, non-convex regularizer,
# $\lambda \sum_j w_j^2 / (1 + w_j^2)$. The algorithm never sees a record. It asks for the mean
# gradient and the mean Hessian, receives them with Gaussian noise, and solves the trust-region
# subproblem on the noisy quadratic. Each record's contribution is clipped first, so no record can
# move an answer by more than a known amount: that amount, the *sensitivity*, sets the noise.

# %%
objective = dpjax.objectives.logistic_nonconvex(regularization=1e-3)
sizes = {"data_size": data.size, "dimension": data.dimension}
budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-6)

algorithm = dpjax.dp_trust_region(objective, budget, **sizes)
solution = dpjax.solve(algorithm, data, key=jax.random.key(0))

print(dpjax.Status(int(solution.status)).message)
print("weights:", np.round(solution.params, 2))

# %% [markdown]
# `jax.random.key(0)` makes this page reproducible, and **spoils the privacy**: whoever knows the
# seed can subtract the noise. For a model that you release, use `key=dpjax.random_key()`.
#
# ## What is guaranteed
#
# Every solution can say it in words you can publish:

# %%
print(solution.guarantee())

# %% [markdown]
# In plain words: take two data sets that are *neighbours*, alike except for one record. Whatever
# the training releases looks nearly the same on both, so nobody can tell from it which of the two
# was used, and hence nothing about that record that the other records do not tell already.
#
# "Nearly" is what $\varepsilon$ and $\delta$ measure. The test below makes it concrete. An attacker
# who knows *every other record* must decide whether ours was used, and may accuse wrongly with
# probability 1 % or 5 %. How often can they be right? With the guessing rate as the floor, $\mu$
# gives the answer exactly, however clever they are.

# %%
alarms = np.array([0.01, 0.05])
print("epsilon     mu   caught at 1 % false alarms   at 5 %")
for epsilon in (0.1, 1.0, 5.0):
    budget_here = dataclasses.replace(budget, epsilon=epsilon)
    mu = dpjax.dp_trust_region(objective, budget_here, **sizes).event.gaussian_mu
    caught = norm.cdf(norm.ppf(alarms) + mu)
    print(f"{epsilon:7} {mu:6.3f} {caught[0]:28.1%} {caught[1]:8.1%}")

# %% [markdown]
# ### An epsilon without its relation means nothing
#
# *Neighbours* has more than one definition. Under `zero_out` a record is replaced by a null record
# that contributes nothing; under `replace_one` by any other record, which can move a sum twice as
# far. The same $\varepsilon$ then asks for twice the noise. So a method at "epsilon 1" of one kind
# cannot be compared with a method at "epsilon 1" of the other: half of the difference would be the
# definition. Everything in dpjax carries its relation and refuses to mix the two.

# %%
for relation in ("zero_out", "replace_one"):
    event = dpjax.dp_trust_region(
        objective, dpjax.PrivacyBudget(1.0, 1e-6, relation), **sizes
    ).event
    (release,) = event.releases
    stddev = dict(release.components)["gradient"]
    print(f"{relation:11}  sensitivity {release.sensitivity:.3e}  gradient noise {stddev:.3e}")
try:
    dpjax.accounting.epsilon(event, 1e-6, "zero_out")
except ValueError as refusal:
    print(refusal)

# %% [markdown]
# ### The unit is a person-year, and a person has up to five
#
# The guarantee is for one row. Someone with $k$ rows is protected too, with $k$ times the $\mu$:

# %%
(release,) = solution.event.releases
for rows in (1, 5):
    fewer = dataclasses.replace(release, noise_multiplier=release.noise_multiplier / rows)
    event = dataclasses.replace(solution.event, releases=(fewer,))
    epsilon = dpjax.accounting.epsilon(event, budget.delta, budget.relation)
    print(f"{rows} row(s) of one person: epsilon {epsilon:.2f} at delta {budget.delta:g}")

# %% [markdown]
# ## What happened during the run
#
# `solution.history` holds what was released at each step, so it may be looked at and published.
# (`dpjax.plotting.plot_solution` draws much the same picture into a file.)

# %%
history, steps = solution.history, np.arange(1, int(solution.steps) + 1)
noise = float(algorithm.queries[0].stddev) * data.dimension**0.5

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8))
left.plot(
    steps, history.gradient_norm, color=BLUE, marker="o", markersize=3, label="noisy gradient"
)
left.axhline(noise, color="0.4", linestyle="--", label="typical norm of the noise alone")
left.plot(
    steps[-1],
    solution.certificate.gradient_norm_upper,
    color=ORANGE,
    marker="v",
    linestyle="none",
    label="certified: true gradient at most this",
)
left.set(xlabel="step", ylabel="gradient norm (loss per unit of weight)", yscale="log")
left.set_title("Down to the noise in three steps")
left.legend()
right.plot(steps, history.radius, color=PINK, linestyle="--", label="trust radius")
right.plot(steps, history.step_norm, color=GREEN, marker="o", markersize=3, label="step taken")
right.set(xlabel="step", ylabel="length (units of the weights)", yscale="log")
right.set_title("Late steps are held by the radius")
right.legend()
figure.suptitle(f"DP-TR on randhie, epsilon {budget.epsilon:g}, {budget.relation}, one run")
plt.show()

# %% [markdown]
# Left: after about three steps the gradient sinks below the noise, and what is left to see *is* the
# noise; more steps could only chase it. Right: the radius shrinks on a public schedule, so the
# steps that chase noise get shorter. Nothing about this schedule was read off the data.

# %% [markdown]
# ## The certificate
#
# We cannot look at the true gradient. But we know the noise we added, and so can bound what it
# hides: with probability at least $1 - \beta$ (here 95 %) over the noise,
#
# - the true gradient norm is at most `gradient_norm_upper`, and
# - the smallest eigenvalue of the true Hessian is at least `min_eigenvalue_lower`,
#
# so a released model can come with evidence that it sits near a local minimum, not at a saddle.
# It is computed from answers already released, hence **free**: it costs no epsilon. For that it
# must speak of the point where the last answers were asked, $w_{T-1}$
# (`solution.certified_params`), and not of $w_T$, the step taken afterwards and the model you
# release. `certify="output"` asks once more at $w_T$ itself; the budget is then shared by $T + 1$
# questions and the noise grows by $\sqrt{(T+1)/T}$, 1.6 % here.

# %%
at_output = dpjax.solve(
    dpjax.dp_trust_region(objective, budget, certify="output", **sizes),
    data,
    key=jax.random.key(0),
)
for result in (solution, at_output):
    certificate, (release,) = result.certificate, result.event.releases
    print(
        f"{certificate.iterate:10}  {release.count} releases  epsilon {result.epsilon(1e-6):.3f}  "
        f"gradient <= {certificate.gradient_norm_upper:.4f}  "
        f"eigenvalue >= {certificate.min_eigenvalue_lower:+.4f}  (of the {certificate.scope})"
    )

# %% [markdown]
# **NOT PRIVATE: do the bounds hold?** The records are public, so we may look, here and over 200
# other seeds.

# %%
# NOT PRIVATE: exact values on the raw records.
exact_norm = lambda w: dpjax.diagnostics.exact_gradient_norm(objective, w, data.examples)  # noqa: E731
exact_eigenvalue = lambda w: dpjax.diagnostics.exact_min_eigenvalue(objective, w, data.examples)  # noqa: E731
for result in (solution, at_output):
    w = result.certified_params
    name = result.certificate.iterate
    print(f"{name:10}  exact gradient {exact_norm(w):.4f}  eigenvalue {exact_eigenvalue(w):+.4f}")

many = jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(
    jax.random.split(jax.random.key(1), 200)
)
norms = jax.lax.map(exact_norm, many.certified_params)
eigenvalues = jax.lax.map(exact_eigenvalue, many.certified_params)
upper, lower = many.certificate.gradient_norm_upper, many.certificate.min_eigenvalue_lower
print(f"both bounds hold in {np.mean((norms <= upper) & (eigenvalues >= lower)):.1%} of 200 runs")
print(f"median gradient:   exact {np.median(norms):.4f}, bound {np.median(upper):.4f}")
print(f"median eigenvalue: exact {np.median(eigenvalues):.4f}, bound {np.median(lower):+.4f}")

# %% [markdown]
# ## What privacy costs: epsilon against gap
#
# The gap is the exact objective at the released weights, minus its minimum. The minimum comes from
# an ordinary optimizer that sees everything, started at many points because the objective is not
# convex.

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
    start_gap = float(exact(starts[0])) - minimum
print(f"minimum {minimum:.6f}; the ten starts agree to {max(r.fun for r in found) - minimum:.0e}")
print(f"gap at the starting point w = 0: {start_gap:.4f}")

# %% [markdown]
# An algorithm is a pytree whose numbers are leaves. So algorithms for six budgets can be stacked,
# and one `vmap` over budgets and another over seeds make the whole sweep **one** program, compiled
# once. The rival is DP-GD, private gradient descent, with the same records, budgets, relation, and
# seeds. Both run as they come, untuned. DP-TR takes 32 steps; DP-GD takes the number that its
# theory asks for, which grows with epsilon.

# %%
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SEEDS = 20


def sweep(factory):
    algorithms = [
        factory(objective, dataclasses.replace(budget, epsilon=epsilon), **sizes)
        for epsilon in EPSILONS
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)
    keys = jax.random.split(jax.random.key(2), SEEDS)

    def run(algorithm, key, data):
        return dpjax.solve(algorithm, data, key=key)

    over_seeds = jax.vmap(run, in_axes=(None, 0, None))
    over_both = jax.vmap(over_seeds, in_axes=(0, None, None))
    start = time.perf_counter()
    program = jax.jit(over_both).lower(stacked, keys, data).compile()
    compiled = time.perf_counter()
    solutions = jax.block_until_ready(program(stacked, keys, data))
    end = time.perf_counter()
    runs = len(EPSILONS) * SEEDS
    title = algorithms[0].title
    print(f"{title}: compile {compiled - start:.1f} s once, {runs} runs {end - compiled:.1f} s")
    return algorithms, solutions


sweeps = {"DP-TR": sweep(dpjax.dp_trust_region), "DP-GD": sweep(dpjax.dp_gradient_descent)}

# %% [markdown]
# Under `vmap` every run waits for the longest one, so DP-GD's time is that of its largest horizon.

# %%
# NOT PRIVATE: exact gaps.
gaps = {}
with jax.enable_x64(True):
    for title, (_, solutions) in sweeps.items():
        weights = np.asarray(solutions.params, np.float64).reshape(-1, data.dimension)
        gaps[title] = np.asarray(jax.lax.map(exact, weights)).reshape(-1, SEEDS) - minimum

print("epsilon  DP-TR median gap (10-90 %)     DP-GD median gap (10-90 %)     ratio  DP-GD steps")
for i, epsilon in enumerate(EPSILONS):
    row = ""
    for title in sweeps:
        low, middle, high = np.quantile(gaps[title][i], [0.1, 0.5, 0.9])
        row += f"  {middle:.1e} ({low:.1e} to {high:.1e})  "
    ratio = np.median(gaps["DP-GD"][i]) / np.median(gaps["DP-TR"][i])
    print(f"{epsilon:7}{row}{ratio:5.2f} {sweeps['DP-GD'][0][i].steps:12,}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), width_ratios=[3, 2])
looks = {"DP-TR": (BLUE, "o", "-"), "DP-GD": (ORANGE, "s", "--")}
for title, (color, marker, line) in looks.items():
    low, middle, high = np.quantile(gaps[title], [0.1, 0.5, 0.9], axis=1)
    left.fill_between(EPSILONS, low, high, color=color, alpha=0.2, linewidth=0)
    left.plot(EPSILONS, middle, color=color, marker=marker, linestyle=line, label=title)
    passes = [algorithm.steps for algorithm in sweeps[title][0]]
    right.plot(EPSILONS, passes, color=color, marker=marker, linestyle=line, label=title)
left.axhline(start_gap, color="0.4", linestyle=":", label="starting point, w = 0")
for axes in (left, right):
    axes.set(xlabel="epsilon (zero_out, per person-year, delta = 1e-6)", xscale="log", yscale="log")
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.minorticks_off()
left.set(ylabel="gap to the exact minimum (mean loss)")
left.set_title(f"Accuracy: median and 10-90 % of {SEEDS} seeds")
left.legend()
right.set(ylabel="passes over the data, each run")
right.set_title("Work")
right.legend()
plt.show()
