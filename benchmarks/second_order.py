"""What costs no privacy in DP-TR, and variance-reduced Hessians: the numbers of docs/benchmarks.md.

``python -m benchmarks.second_order filter`` trains with ``dp_trust_region`` itself, on the last
answers, filtered, and filtered with more steps or growing shares of the budget. ``shares`` splits
mu^2 over its T = 3, 8 and 32 steps by public weights that grow geometrically, ``lazy`` asks a
Hessian at every m-th step alone, and ``lazy-time`` says what that saves. ``public`` starts it at
the minimum over public rows. The others are simulations of one joint release a step, with the
noise that the library calibrates, on matrices that answer all seeds at once:

- ``simulation`` holds it beside the library.
- ``hessians`` asks differences of Hessians in the last steps, of all records or of batches.

Gaps are NOT PRIVATE: they compare with the optimum on public benchmark data. Each is the mean of 10
seeds; where one row is compared with another, by the same seeds, p is that of a two-sided paired
t-test on the logarithms of gaps.

Differences of Hessians. Let d = |w - a| for the iterate w and an anchor a, both released. A record
of a linear model on |x| <= 1 has |H_i(w) - H_i(a)|_F = |psi''(w) - psi''(a)| |x|^2 <= rho d with
rho = sup |psi'''|; for others the difference is clipped to rho d. So one record moves the joint
vector (sum g_i / w_g, svec(sum (H_i(w) - H_i(a))) / (w_h d)) by at most
c = sqrt((G / w_g)^2 + (rho / w_h)^2), whatever d is, and Gaussian noise of a multiplier m times c
on it is one Gaussian release of m: the scale w_h d is a function of earlier answers, so adaptive
composition applies. At d = 0 nothing is released of the Hessian, and none is needed.
"""

import argparse
import collections
import dataclasses
import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import expit
from scipy import optimize, stats

import dpjax
from dpjax._typing import pytree_dataclass, static
from dpjax.accounting import compose, round_up
from dpjax.algorithms import trust_region
from dpjax.algorithms.filtering import FilteredModel, filtered, unfiltered
from dpjax.algorithms.model_queries import fractions
from dpjax.algorithms.model_queries import shares as checked
from dpjax.algorithms.schedules import radius_at, typical_radius
from dpjax.linalg import trust_region_step
from dpjax.oracles import GradientQuery, JointQuery, SecondOrderAnswer

EPSILONS = (0.2, 0.5, 1.0, 2.0)
SEEDS = 10
ROWS = {"ijcnn1": 35_000, "covtype": 100_000}
LOSSES = {
    "logistic": dpjax.objectives.logistic_nonconvex,
    "sigmoid": dpjax.objectives.sigmoid_l2,
}
STRENGTH = 1e-3
# Largest third derivative of a record's loss by its score, rounded up.
BEND = {"logistic": 0.0963, "sigmoid": 0.1251}
LIPSCHITZ = {"logistic": 1.0, "sigmoid": 0.25}
# What ``optima`` prints; of Covertype, logistic, two of ten minima are this one, eight higher.
OPTIMA = {
    ("ijcnn1", "logistic"): 0.2071308478,
    ("ijcnn1", "sigmoid"): 0.1750688347,
    ("covtype", "logistic"): 0.4024652379,
    ("covtype", "sigmoid"): 0.2979819154,
}
FULL = 10**9  # a first step of differences that never comes


def growing(steps, growth):
    """Weights of ``steps`` steps, each ``growth`` times the one before."""
    weights = growth ** np.arange(steps)
    return weights / weights.sum()


class Problem:
    """A data set and a loss, with what answers all seeds by matrix products.

    ``rows`` are that many, evenly spread over those of ``ROWS``.
    """

    def __init__(self, name, loss, rows=None, seeds=SEEDS):
        data, self.seeds = dpjax.datasets.load(name), seeds
        part = slice(0, ROWS[name], ROWS[name] // rows if rows else None)
        x, y = (np.asarray(each)[part] for each in data.examples)
        self.name, self.loss, self.objective = name, loss, LOSSES[loss](STRENGTH)
        self.data = dpjax.Dataset(x, y, name=name, max_norm=1.0)
        self.n, self.p = x.shape
        i, j = np.triu_indices(self.p)
        self.signed = jnp.asarray(x * y[:, None])
        self.products = jnp.asarray(x[:, i] * x[:, j])
        self.optimum = minima(self)[0][0] if rows else OPTIMA[name, loss]

    def __str__(self):
        return f"{self.name}, {self.n:,} rows, {self.loss} loss"

    def values(self, params):
        """Objective of each row of ``params``."""
        with jax.enable_x64(True):
            wide = jnp.asarray(params, jnp.float64)
            return np.asarray(_values(self.loss, jnp.asarray(self.signed, jnp.float64), wide))

    def minimum(self, start):
        """A stationary point near ``start`` in float64: objective, gradient norm, eigenvalue."""
        (_, slope, curve), (_, penalty_slope, penalty_curve) = (
            of(self.loss) for of in (_derivatives, _penalty)
        )
        with jax.enable_x64(True):
            rows = jnp.asarray(self.signed, jnp.float64)
            value = jax.jit(lambda w: _values(self.loss, rows, w[None])[0])
            jac = jax.jit(lambda w: slope(rows @ w) @ rows / self.n + penalty_slope(w))

            @jax.jit
            def hess(w):
                curved = (rows.T * curve(rows @ w)) @ rows / self.n
                return curved + jnp.diag(penalty_curve(w) * jnp.ones_like(w))

            options = {"gtol": 1e-5, "max_trust_radius": 100.0}
            found = optimize.minimize(
                value, start, method="trust-exact", jac=jac, hess=hess, options=options
            )
            w, count = found.x, 0
            while np.linalg.norm(jac(w)) > 1e-9 and (count := count + 1) < 20:
                w = w - np.linalg.pinv(hess(w)) @ jac(w)  # singular where a column is 0
            least = np.linalg.eigvalsh(hess(w))[0]
            return float(value(w)), float(np.linalg.norm(jac(w))), float(least)

    def noise(self, epsilon, steps):
        """Standard deviations of the joint release: a gradient's coordinate, a diagonal entry."""
        query = self.library(dpjax.dp_trust_region, epsilon, steps=steps).queries[0]
        return float(query.stddev), float(query.hessian_stddev)

    def library(self, factory, epsilon, **more):
        budget = dpjax.PrivacyBudget(epsilon, 1 / self.n)
        shape = {"data_size": self.n, "dimension": self.p}
        return factory(self.objective, budget, **shape, **more)

    def solved(self, algorithm, data=None, params=None):
        """Gaps of the library's runs, one a seed; by default on all rows and from 0."""
        keys = jax.random.split(jax.random.key(2020), self.seeds)
        data = self.data if data is None else data
        params = jnp.zeros(self.p) if params is None else params
        return self.values(_solved(algorithm, data, keys, params)) - self.optimum


@jax.jit
def _solved(algorithm, data, keys, params):
    return jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key, params=params).params)(keys)


@functools.partial(jax.jit, static_argnums=0)
def _values(loss, signed, params):
    of_score, (penalty, _, _) = _derivatives(loss)[0], _penalty(loss)
    return jnp.mean(of_score(signed @ params.T), 0) + jax.vmap(penalty)(params)


def _derivatives(loss):
    """The loss of a margin m = y <x, w>, and its first two derivatives."""
    if loss == "logistic":
        return (
            lambda m: jnp.logaddexp(0.0, -m),
            lambda m: -expit(-m),
            lambda m: expit(m) * expit(-m),
        )
    return (
        lambda m: expit(-m),
        lambda m: -expit(m) * expit(-m),
        lambda m: expit(m) * expit(-m) * (expit(m) - expit(-m)),
    )


def _penalty(loss):
    """The regularizer, its gradient and the diagonal of its Hessian."""
    if loss == "logistic":
        return (
            lambda w: STRENGTH * jnp.sum(w * w / (1 + w * w)),
            lambda w: STRENGTH * 2 * w / (1 + w * w) ** 2,
            lambda w: STRENGTH * (2 - 6 * w * w) / (1 + w * w) ** 3,
        )
    return (
        lambda w: STRENGTH / 2 * jnp.sum(w * w),
        lambda w: STRENGTH * w,
        lambda w: STRENGTH * jnp.ones_like(w),
    )


def simulate(
    problem,
    noise,
    *,
    starts=None,
    key=0,
    steps=32,
    weights=None,
    filtering=False,
    radius=12.0,
    last_radius=0.5,
    damping=0.5,
    differences_from=FULL,
    loading=0.1,
    every=1,
    batch=1.0,
):
    """Returns the last iterates, one a column of ``noise``, (S, p).

    Args:
      problem: see ``Problem``.
      noise: arrays (S,), the standard deviations of an answer where all steps have equal shares.
      starts: (S, p), by default 0.
      key: seed of all noise and batches.
      steps: T.
      weights: of the steps, their shares of mu^2.
      filtering: as in ``dp_trust_region``.
      radius: of the first step, and ``last_radius`` of the last.
      last_radius: as above.
      damping: over the spectral scale of the Hessian's noise.
      differences_from: first step whose Hessian is asked as a difference from an anchor.
      loading: what a difference adds to the square of a record's joint norm, so that the gradient's
        noise grows by sqrt(1 + loading).
      every: steps between two anchors, which take over the Hessian known at them.
      batch: probability of a record in each step; the noise is then that of means over batches.
    """
    weights = growing(steps, 1.0) if weights is None else checked(weights, steps, False, True)
    numbers = {
        "filtering": float(filtering),
        "radius": radius,
        "decay": (last_radius / radius) ** (1 / max(steps - 1, 1)),
        "damping": damping,
        "from": min(differences_from, 10**6),
        "loading": loading,
        "every": every,
        "batch": batch,
    }
    of_gradient, of_hessian = (jnp.asarray(part, jnp.float32) for part in noise)
    if starts is None:
        starts = jnp.zeros((of_gradient.size, problem.p))
    scale = jnp.asarray(1 / np.sqrt(steps * weights), jnp.float32)
    arrays = problem.signed, problem.products, starts, of_gradient, of_hessian, scale
    more = (problem.loss, batch < 1, differences_from < steps)
    return np.asarray(_simulate(*more, jax.random.key(key), *arrays, numbers))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _simulate(loss, batches, differs, key, signed, products, starts, *more):
    of_gradient, of_hessian, scale, c = more
    (seeds, p), n = starts.shape, signed.shape[0]
    i, j = np.triu_indices(p)
    _, slope, curve = _derivatives(loss)
    _, penalty_slope, penalty_curve = _penalty(loss)
    law = jnp.where(i == j, 1.0, np.sqrt(0.5)).astype(jnp.float32)[None]
    step_of = jax.vmap(lambda g, h, radius: trust_region_step(g, h, radius).step, (0, 0, None))

    def square(packed):
        upper = jnp.zeros((seeds, p, p)).at[:, i, j].set(packed)
        return jnp.where((np.tri(p, k=-1) > 0)[None], jnp.swapaxes(upper, 1, 2), upper)

    def ask(t, w, anchor):
        """Noisy gradient and Hessian, or difference of Hessians, with their deviations."""
        keys = jax.random.split(jax.random.fold_in(key, t), 3)
        margins, differing = signed @ w.T, t >= c["from"]
        curvature = curve(margins)
        s_gradient, s_hessian = of_gradient * scale[t], of_hessian * scale[t]
        if differs:
            s_gradient = s_gradient * jnp.sqrt(1 + jnp.where(differing, c["loading"], 0.0))
            curvature = curvature - jnp.where(differing, curve(signed @ anchor.T), 0.0)
            bend = BEND[loss] * jnp.linalg.norm(w - anchor, axis=1) / LIPSCHITZ[loss]
            s_difference = s_gradient * bend / jnp.sqrt(c["loading"])
            s_hessian = jnp.where(differing, s_difference, s_hessian)
        mask = 1.0
        if batches:
            mask = jax.random.bernoulli(keys[2], c["batch"], margins.shape) / c["batch"]
        gradient = (signed.T @ (slope(margins) * mask) / n).T
        packed = (products.T @ (curvature * mask) / n).T
        gradient = gradient + s_gradient[:, None] * jax.random.normal(keys[0], gradient.shape)
        packed = packed + s_hessian[:, None] * law * jax.random.normal(keys[1], packed.shape)
        return gradient, square(packed), s_gradient, s_hessian

    def step(t, state):
        w, model = state["w"], state["model"]
        gradient, asked, s_gradient, s_hessian = ask(t, w, state["anchor"])
        if differs:
            differing, anchors = t >= c["from"], (t + 1 - c["from"]) % c["every"] == 0
            asked = asked + jnp.where(differing, state["known"], 0.0)
            s_hessian = jnp.sqrt(s_hessian**2 + jnp.where(differing, state["v_known"], 0.0))
        answer = SecondOrderAnswer(gradient, asked), (s_gradient, s_hessian)
        raw = jax.vmap(unfiltered)(*answer)
        over = jax.vmap(filtered, (0, None, 0, 0, 0))(model, t, w - state["before"], *answer)
        model = jax.tree.map(lambda a, b: jnp.where(c["filtering"] > 0, a, b), over, raw)
        if differs:
            last = {"hessian": raw.hessian, "hessian_variance": raw.hessian_variance}
            last = {k: jnp.where(differing, v, getattr(model, k)) for k, v in last.items()}
            model = model._replace(**last)
        lift = c["damping"] * jnp.sqrt(2 * p * model.hessian_variance)
        diagonal = penalty_curve(w) + lift[:, None]
        curved = model.hessian + jax.vmap(jnp.diag)(diagonal)
        radius = c["radius"] * c["decay"] ** t
        taken = step_of(model.gradient + penalty_slope(w), curved, radius)
        after = {"w": w + taken, "before": w, "model": model}
        if differs:
            new = {"anchor": w, "known": model.hessian, "v_known": model.hessian_variance}
            after |= {name: jnp.where(anchors, new[name], state[name]) for name in new}
        return {**state, **after}

    none, matrix, zero = jnp.zeros((seeds, p)), jnp.zeros((seeds, p, p)), jnp.zeros(seeds)
    state = {"w": starts, "before": starts, "model": FilteredModel(none, matrix, zero, zero)}
    state |= {"anchor": starts, "known": matrix, "v_known": zero}
    return jax.lax.fori_loop(0, scale.size, step, state)["w"]


def gaps(problem, steps=32, epsilons=EPSILONS, key=0, noise=None, **settings):
    """Gaps of simulated runs, (epsilons, seeds)."""
    noise = noise or [problem.noise(epsilon, steps) for epsilon in epsilons]
    columns = np.repeat(np.asarray(noise, np.float32), problem.seeds, axis=0).T
    ends = simulate(problem, tuple(columns), key=key, steps=steps, **settings)
    return problem.values(ends).reshape(len(noise), problem.seeds) - problem.optimum


def cell(gap, beside=None):
    """Mean and standard error, and beside other gaps the ratio of means and the p-value."""
    text = f"{gap.mean():.2g} ± {gap.std(ddof=1) / np.sqrt(gap.size):.1g}"
    if beside is None:
        return text
    floor = 2e-7  # of float32 in the objective
    logs = np.log(np.maximum(gap, floor)) - np.log(np.maximum(beside, floor))
    p = stats.ttest_1samp(logs, 0).pvalue
    return f"{text} ({gap.mean() / beside.mean():.2f}, p {p:.2g})"


def table(title, rows):
    """Prints a table whose rows are compared with the first one."""
    print(f"\n{title}\n\n| | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |")
    print("|---|" + "---|" * len(EPSILONS))
    first = None
    for name, found in rows:
        cells = [cell(gap, None if first is None else first[i]) for i, gap in enumerate(found)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        first = found if first is None else first


def library(problem):
    """The library's DP-TR on the last answers, filtered, and filtered with other settings."""
    longer, growth = {"steps": 48, "final_radius": 0.3}, 1.03
    settings = {
        "last answers": {"filtering": False},
        "filtered, the default": {},
        "T = 48, final radius 0.3": longer,
        "shares growing by 3 % a step": {"weights": growing(32, growth)},
        "both": longer | {"weights": growing(48, growth)},
    }

    def rows():
        for name, more in settings.items():
            runs = []
            for epsilon in EPSILONS:
                more = more | {"certify": None}
                runs.append(problem.solved(problem.library(dpjax.dp_trust_region, epsilon, **more)))
            yield name, runs

    table(f"DP-TR on {problem.name}, {problem.loss} loss", rows())


def public(problem):
    """A start from 1 % of the rows, declared public and drawn by index; trainings read the others.

    It is the minimum over them, with a ridge of 1e-4 that keeps columns without entries at 0.
    """
    declared = np.random.default_rng(5).permutation(problem.n)[: problem.n // 100]
    value, slope, _ = _derivatives(problem.loss)
    penalty, penalty_slope, _ = _penalty(problem.loss)
    with jax.enable_x64(True):
        signed = jnp.asarray(problem.signed, jnp.float64)[declared]

        @jax.jit
        def both(w):
            ridge = 1e-4 / 2 * jnp.sum(w * w)
            gradient = slope(signed @ w) @ signed / len(signed) + penalty_slope(w) + 1e-4 * w
            return jnp.mean(value(signed @ w)) + penalty(w) + ridge, gradient

        start = optimize.minimize(
            lambda w: [*map(np.asarray, both(w))], np.zeros(problem.p), jac=True
        )
    _, data = problem.data.split(declared)
    budgets = [dpjax.PrivacyBudget(epsilon, 1 / problem.n) for epsilon in EPSILONS]
    shape = {"data_size": data.size, "dimension": problem.p, "certify": None}

    def rows():
        for name, at, more in (
            ("from 0", 0.0, {}),
            ("from 0, T = 16", 0.0, {"steps": 16}),
            ("from the public minimum", 1.0, {}),
            ("the same, T = 16", 1.0, {"steps": 16}),
            ("the same, T = 8, final radius 1", 1.0, {"steps": 8, "final_radius": 1.0}),
        ):
            made = [dpjax.dp_trust_region(problem.objective, b, **shape, **more) for b in budgets]
            params = jnp.asarray(at * start.x, jnp.float32)
            yield name, [problem.solved(algorithm, data, params) for algorithm in made]

    gap = problem.values(start.x[None])[0] - problem.optimum
    table(
        f"Public rows of {problem.name}, {problem.loss} loss, whose minimum is off by {gap:.2g}",
        rows(),
    )


NEW = {"filtering": True, "radius": 8.0}
# First step with differences, steps between anchors, and loading.
DIFFERENCES = ((12, 1, 0.1), (24, 1, 0.1), (24, 100, 0.1), (24, 100, 0.3))


def simulated(problem):
    """The simulation of both."""
    rows = (("last answers", {}), ("filtered", NEW))
    title = f"Simulation on {problem.name}, {problem.loss} loss"
    table(title, ((name, gaps(problem, **settings)) for name, settings in rows))


def shares(problem):
    """Which growth of the shares is best for T = 3, 8 and 32."""
    for steps in (3, 8, 32):

        def rows(steps=steps):
            for growth in (1.0, 1.03, 1.1, 1.3):
                more = {"steps": steps, "weights": growing(steps, growth), "certify": None}
                made = [problem.library(dpjax.dp_trust_region, e, **more) for e in EPSILONS]
                yield f"growth {growth - 1:.0%} a step", [*map(problem.solved, made)]

        table(f"Shares on {problem}, T = {steps}", rows())


@pytree_dataclass(kw_only=True)
class Lazy(trust_region.TrustRegion):
    """DP-TR that asks a Hessian at every m-th step and keeps the model's between.

    Its queries are of the gradient alone, and of the Hessian or of both. Where it is of both, all
    answers have one multiplier, so that T answers are T releases of it, whatever m is.
    """

    every: int = static()

    title = "Lazy DP-TR"

    @property
    def event(self):
        (gradient, last), hessians = self.queries, -(-int(self.steps) // self.every)
        alone = int(self.steps) - hessians * isinstance(last, JointQuery)
        asked = ((gradient, alone), (last, hessians))
        return compose(query.event(count) for query, count in asked if count)

    def init(self, params):
        state = trust_region.start(params)
        return state._replace(model=unfiltered(state.answer, self._stddevs(state.iteration)))

    def _ask(self, state, ask):
        (gradient, last), params = self.queries, state.params
        new = state.iteration % self.every == 0
        if not isinstance(last, JointQuery):
            return SecondOrderAnswer(ask(gradient, params), ask(last, params, asked=new))
        both, alone = ask(last, params, asked=new), ask(gradient, params, asked=~new)
        return both._replace(gradient=jnp.where(new, both.gradient, alone))

    def step(self, key, state, ask):
        answer, old = self._ask(state, ask), state.model
        new, noise = state.iteration % self.every == 0, self._stddevs(state.iteration)
        model = unfiltered(answer, noise)
        if self.filtering:
            move = state.params - state.query_point
            model = filtered(old, state.iteration, move, answer, noise)
        # Where no Hessian was asked the last model's stays; the gradient's filter reads no new one.
        model = model._replace(
            hessian=jnp.where(new, model.hessian, old.hessian),
            hessian_variance=jnp.where(new, model.hessian_variance, old.hessian_variance),
        )
        radius = radius_at(self, state.iteration, answer.hessian.dtype)
        return trust_region.take_step(
            self, state, answer, radius, self._damping(model, state.iteration), model
        )


def lazily(algorithm, every):
    """Returns ``algorithm``, a ``TrustRegion``, with a Hessian at every so many steps alone.

    Separate releases have mu^2 split anew: a Hessian asked at every m-th step has m times as much.
    """
    first, last = algorithm.queries[0], algorithm.queries[-1]
    multiplier, scale = last.noise_multiplier, 1.0
    if not isinstance(last, JointQuery):
        mu = np.hypot(1 / float(first.noise_multiplier), 1 / float(last.noise_multiplier))
        length = typical_radius((float(algorithm.radius), 0.5))
        parts = fractions(first.clip_norm, last.clip_norm / np.sqrt(every), length)
        multiplier, of_hessian = (
            round_up(1 / (mu * np.sqrt(part))) for part in (parts[0], every * parts[1])
        )
        scale = of_hessian / float(last.noise_multiplier)
        last = dataclasses.replace(last, noise_multiplier=of_hessian)
    gradient = GradientQuery(
        setting=last.setting, noise_multiplier=multiplier, clip_norm=first.bound()
    )
    fields = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    fields |= {"queries": (gradient, last), "damping": algorithm.damping * scale, "every": every}
    return Lazy(**fields)


def of_batches(problem, epsilon):
    """DP-STR's question and defaults in a ``TrustRegion`` that reads last answers."""
    drawn = problem.library(dpjax.dp_stochastic_trust_region, epsilon)
    more = {"steps": int(drawn.steps), "certify": None, "filtering": False}
    whole = problem.library(dpjax.dp_trust_region, epsilon, **more)
    same = {name: getattr(drawn, name) for name in ("radius", "radius_decay")}
    return dataclasses.replace(whole, queries=drawn.stages[0], damping=drawn.damping[0], **same)


def whole(problem, epsilon, **more):
    """DP-TR of the library."""
    return problem.library(dpjax.dp_trust_region, epsilon, certify=None, **more)


FORMS = {
    "DP-TR": whole,
    "DP-TR, last answers": functools.partial(whole, filtering=False),
    "DP-TR, separate releases": functools.partial(whole, release="separate"),
    "DP-STR": of_batches,
}
EVERY = (2, 4, 8)


def lazy(problem):
    """A Hessian at every m-th step, in the library's forms of a release."""
    for form, make in FORMS.items():
        made = [make(problem, epsilon) for epsilon in EPSILONS]

        def rows(made=made):
            yield "a Hessian each step", [*map(problem.solved, made)]
            for every in EVERY:
                held = [lazily(algorithm, every) for algorithm in made]
                for algorithm, epsilon in zip(held, EPSILONS, strict=True):
                    assert algorithm.epsilon() <= epsilon
                yield f"every {every} steps", [*map(problem.solved, held)]

        table(f"{form} with lazy Hessians on {problem}", rows())


class Wide(Problem):
    """Made-up rows on the sphere, logistic loss."""

    def __init__(self, n, p):
        draw = np.random.default_rng(0)
        x = draw.normal(size=(n, p)).astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True) * np.float32(1 + 1e-6)
        y = np.where(draw.uniform(size=n) < expit(8 * x[:, 0]), 1, -1).astype(np.float32)
        self.objective, self.n, self.p = LOSSES["logistic"](STRENGTH), n, p
        self.data = dpjax.Dataset(x, y, name="wide", max_norm=1.0)


def seconds(algorithm, problem):
    """The least time of three runs that are compiled already."""
    # Rows that are constants of a program take minutes to compile.
    run = jax.jit(lambda data, key: dpjax.solve(algorithm, data, key=key).params)
    data, times = jax.tree.map(jnp.asarray, (problem.data.x, problem.data.y)), []
    for seed in range(4):
        begun = time.perf_counter()
        run(data, jax.random.key(seed)).block_until_ready()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def lazy_time(features=(200, 400), n=10_000):
    """Time of a step on made-up rows: the least of three runs of all steps, over their number."""
    print("\n| | " + " | ".join(f"p = {p}" for p in features) + " |")
    print("|---|" + "---|" * len(features))
    cells = collections.defaultdict(list)
    for p in features:
        problem = Wide(n, p)
        for form in ("DP-TR", "DP-STR"):
            made = FORMS[form](problem, 1.0)
            for every in (1, *EVERY):
                algorithm = lazily(made, every) if every > 1 else made
                cells[form, every].append(seconds(algorithm, problem) / int(made.steps))
    for (form, every), times in cells.items():
        first = cells[form, 1]
        row = [f"{1e3 * t:.3g} ms ({t / u:.2f})" for t, u in zip(times, first, strict=True)]
        print(f"| {form}, m = {every} | " + " | ".join(row) + " |")


def hessians(problem):
    """Differences of Hessians beside DP-TR; of batches beside DP-STR."""
    rows = [("DP-TR, filtered", gaps(problem, **NEW))]
    for start, every, loading in DIFFERENCES:
        name = f"differences from step {start}, anchor every {every}, loading {loading:g}"
        more = {"differences_from": start, "every": every, "loading": loading}
        rows.append((name, gaps(problem, **NEW, **more)))
    table(f"Hessians on {problem.name}, {problem.loss} loss", rows)
    steps, size = 40, problem.n // 7
    factory = functools.partial(problem.library, dpjax.dp_stochastic_trust_region)
    queries = [factory(epsilon, batch_size=size, steps=steps).queries[0] for epsilon in EPSILONS]
    noise = [(float(query.stddev), float(query.hessian_stddev)) for query in queries]
    common = {"steps": steps, "noise": noise, "batch": size / problem.n}
    rows = [("DP-STR, last answers", gaps(problem, **common))]
    rows.append(("the same, filtered", gaps(problem, **common, **NEW)))
    for start, every, loading in DIFFERENCES:
        name = f"and differences from step {start}, anchor every {every}, loading {loading:g}"
        more = {"differences_from": start, "every": every, "loading": loading}
        rows.append((name, gaps(problem, **common, **NEW, **more)))
    table(f"Batches of n / 7 on {problem.name}, {problem.loss} loss", rows)


def minima(problem):
    """Minima in float64 that Newton's method finds from 0 and random starts, the least first.

    A column without entries starts at 0, from where it would run away to infinity.
    """
    draw, used = np.random.default_rng(0), np.asarray(problem.signed != 0).any(0)
    starts = [np.zeros(problem.p)]
    starts += [draw.normal(size=problem.p) * scale * used for scale in (1, 3, 10) for _ in "1234"]
    ends = [problem.minimum(start) for start in starts]
    return sorted(end for end in ends if end[1] <= 1e-9 and end[2] > 0)


def optima(problem):
    """The least minimum."""
    ends = minima(problem)
    value, norm, least = ends[0]
    same = sum(end[0] < value + 1e-9 for end in ends)
    print(
        f'    ("{problem.name}", "{problem.loss}"): {value:.10f},  # |g| {norm:.0e}, eigenvalue '
        f"{least:.1e}, {same} of {len(ends)} minima",
        flush=True,
    )


PARTS = {
    "optima": optima,
    "filter": library,
    "simulation": simulated,
    "shares": shares,
    "lazy": lazy,
    "hessians": hessians,
    "public": public,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "lazy-time"])
    parser.add_argument("--data", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--rows", type=int, help="a part of the rows, with an optimum of its own")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    if arguments.part == "lazy-time":
        sys.exit(lazy_time())
    try:
        for name in arguments.data:
            for loss in arguments.losses:
                problem = Problem(name, loss, arguments.rows, arguments.seeds)
                PARTS[arguments.part](problem)
    except FileNotFoundError as error:
        sys.exit(str(error))
