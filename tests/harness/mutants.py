"""Planted bugs, each a small patch of the product by name, and a runner that says what they fail.

A patch replaces what the product itself looks up when it runs, so that whoever imported a function
before meets the bug too.
"""

import contextlib
import dataclasses
import math
import pathlib
import sys
import types

import compiling
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import _program, datasets, derivatives, sampling
from dpjax._wide import Expansion, float64, zeros
from dpjax.accounting import (
    PoissonRelease,
    SubsetRelease,
    best_of,
    filters,
    hash_chain,
    losses,
    one_run,
)
from dpjax.algorithms import ending, mirror_descent, spider_theory, stochastic_trust_region
from dpjax.algorithms.ending import _Ending
from dpjax.algorithms.spider import Spider
from dpjax.algorithms.stagewise import Stagewise
from dpjax.algorithms.trust_region import TrustRegion
from dpjax.datasets import delimited, encoders, labels, loaders, units
from dpjax.datasets.rows import MappedFile
from dpjax.derivatives import (
    chunks,
    clipped_grad,
    clipped_hessian,
    clipping,
    general,
    integers,
    primitives,
)
from dpjax.derivatives.ghost import ghost_norm, parts
from dpjax.derivatives.linear import scaled_rows as linear_records
from dpjax.derivatives.linear import sums as linear_sums
from dpjax.derivatives.linear import units as linear_units
from dpjax.driver import configuration, prepare, program, progress
from dpjax.estimators import arrays
from dpjax.mechanisms import (
    PrefixNoise,
    ball,
    fixed_point,
    gaussian,
    keys,
    lattice,
    tree,
)
from dpjax.mechanisms import noise as laws
from dpjax.mechanisms.fixed_point import FRACTION
from dpjax.objectives import linear as linear_losses
from dpjax.oracles import (
    AccuracyQuery,
    DifferenceQuery,
    EstimateQuery,
    GradientQuery,
    HessianQuery,
    MinimizerQuery,
    MomentQuery,
    NewtonQuery,
    PreconditionedQuery,
    SelectionQuery,
    hessian,
    keyed,
    score,
)
from dpjax.oracles import query as oracles
from dpjax.sampling import samplers, skips
from dpjax.training import network as networks
from dpjax.transforms import adaptive, aggregate, noise, second_order
from dpjax.transforms import gaussian as chains
from dpjax.tuning import search, trials

TESTS = pathlib.Path(__file__).parents[1]
MUTANTS = {}
"""Name of a bug -> ``plant(patch)``, which makes it with a ``pytest.MonkeyPatch``."""


def mutant(name):
    def register(plant):
        MUTANTS[name] = plant
        return plant

    return register


@contextlib.contextmanager
def planted(name):
    """The product with one bug, and nothing compiled or cached on either side of it."""
    forget()
    with compiling.apart(name), pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        try:
            yield
        finally:
            forget()


def answering(patch, kind, bug):
    """Plants ``bug`` as the answer of one kind of query, where no class may have its own."""
    answer = oracles.Query.answer

    def planted(self, *args, **public):
        return (bug if isinstance(self, kind) else answer)(self, *args, **public)

    patch.setattr(oracles.Query, "answer", planted)


def forget():
    """Drops every cache of the product and of the tests."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("dpjax", "test_", "factories")):
            for value in list(vars(module).values()):
                if callable(value) and hasattr(value, "cache_clear"):
                    value.cache_clear()


def located(node):
    """The path of a node that is named by its file alone."""
    name, _, test = node.partition("::")
    (path,) = TESTS.rglob(name)
    return f"{path}::{test}" if test else str(path)


def outcomes(*nodes):
    """Runs tests by node id, inside this process; returns {node: None or how it failed}.

    Without the plugin that collects garbage until none is left, twice a session.
    """
    found = {}

    class Watcher:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item, call):
            report = yield
            node = item.nodeid.rpartition("/")[2]
            if call.excinfo is not None:
                found[node] = call.excinfo.typename
            elif call.when == "call":
                found[node] = None
            return report

    plugins = ("cacheprovider", "xdist", "faulthandler", "unraisableexception")
    alone = [f"-pno:{plugin}" for plugin in plugins]
    quiet = ["-q", "-o", "addopts=", *alone]
    pytest.main([*quiet, *map(located, nodes)], plugins=[Watcher()])
    return found


# Too little noise, or noise of the wrong law.


def scaled(factor, module=gaussian):
    def plant(patch):
        whole = module.standard_normal

        def quieter(key, shape):
            with jax.enable_x64(True):
                return whole(key, shape) * round(factor * 64) >> 6

        patch.setattr(module, "standard_normal", quieter)

    return plant


mutant("noise x0.95")(scaled(0.95))
mutant("noise x0.5")(scaled(0.5))


def in_fixed_point(draws):
    with jax.enable_x64(True):
        return (float64(draws) * 2.0**FRACTION).astype(jnp.int64)


@mutant("float32 noise")
def _(patch):
    patch.setattr(
        gaussian,
        "standard_normal",
        lambda key, shape: in_fixed_point(jax.random.normal(key, shape, jnp.float32)),
    )


@mutant("a ball of radius x0.95")
def _(patch):
    whole = ball.radial_share

    def smaller(key, dimension):
        with jax.enable_x64(True):
            return 0.95 * whole(key, dimension)

    patch.setattr(ball, "radial_share", smaller)


@mutant("the sphere for a ball")
def _(patch):
    patch.setattr(ball, "radial_share", lambda key, dimension: float64(1.0))


@mutant("a ball a leaf")
def _(patch):
    whole = ball._norm
    patch.setattr(ball, "_norm", lambda leaves: whole(leaves[:1]))


@mutant("no grid")
def _(patch):
    def release(value, noise, scale):
        with jax.enable_x64(True):
            drawn = float64(noise) * 2.0**-52 * jnp.exp2(float64(scale.exponent))
            plain = value.leading if isinstance(value, Expansion) else value
            return (float64(plain) + drawn).astype(value.dtype)

    patch.setattr(lattice, "release", release)


@mutant("a table off by a piece")
def _(patch):
    whole = fixed_point._table
    patch.setattr(fixed_point, "_table", lambda name: np.roll(whole(name), 1, axis=-2))


@mutant("a coefficient of prefix noise rounded after accounting")
def _(patch):
    whole = tree._square_root

    def coarse(horizon):
        exact = whole(horizon)
        return exact._replace(weights=exact.weights >> 18 << 18)

    patch.setattr(tree, "_square_root", coarse)


@mutant("weights of prefix noise left out after accounting")
def _(patch):
    whole = tree._square_root

    def fewer(horizon):
        exact = whole(horizon)
        return exact._replace(places=exact.places[:, :24], weights=exact.weights[:, :24])

    patch.setattr(tree, "_square_root", fewer)


@mutant("sum and noise rounded apart")
def _(patch):
    apart = lattice.split

    def split(value, exponent):
        with jax.enable_x64(True):
            grids, rest = apart(value, exponent)
            return grids + ((rest + (1 << 43)) >> 44), jnp.zeros_like(rest)

    patch.setattr(lattice, "split", split)


def ratio(diagonal, off_diagonal):
    def plant(patch):
        whole = gaussian.perturb

        def perturb(key, triangle, scale, **kwargs):
            relative = jnp.where(scale == scale[0], diagonal, off_diagonal)
            return whole(key, triangle, scale * relative, **kwargs)

        patch.setattr(gaussian, "perturb", perturb)

    return plant


mutant("off-diagonal noise too small")(ratio(1.0, math.sqrt(0.5)))
mutant("diagonal noise too small")(ratio(math.sqrt(0.5), 1.0))


def per_micro_batch(pieces, each):
    def plant(patch):
        def perturb(key, value, stddev, **kwargs):
            for piece in jax.random.split(key, pieces):
                value = gaussian.perturb(piece, value, each * stddev, **kwargs)
            return value

        patch.setattr(laws, "perturb", perturb)

    return plant


mutant("noise once per micro-batch")(per_micro_batch(4, 1.0))
mutant("noise divided among micro-batches")(per_micro_batch(4, 0.25))


@mutant("an empty sum without noise")
def _(patch):
    def perturb(key, value, stddev, **kwargs):
        noisy = gaussian.perturb(key, value, stddev, **kwargs)
        return jnp.where(jnp.any(value.leading != 0), noisy, value.leading)

    patch.setattr(laws, "perturb", perturb)


@mutant("half the Gumbel noise")
def _(patch):
    whole = laws.noisy_argmax

    def quieter(key, scores, scale, **kwargs):
        with jax.enable_x64(True):
            half = scale * 0.5
        return whole(key, scores, half, **kwargs)

    patch.setattr(laws, "noisy_argmax", quieter)


@mutant("half the noise on the accuracy")
def _(patch):
    def perturb(key, value, stddev, **kwargs):
        return gaussian.perturb(key, value, stddev / 2, **kwargs)

    patch.setattr(laws, "perturb", perturb)


def quiet_in(owner, method):
    """Whatever one method asks is answered with a hundredth of its noise."""

    def plant(patch):
        whole, asking = getattr(owner, method), []

        def asks(self, *arguments):
            asking.append(method)
            try:
                return whole(self, *arguments)
            finally:
                asking.pop()

        def quieter(add):
            def added(law, key, value, stddev):
                with jax.enable_x64(True):
                    small = stddev / 100 if asking else stddev
                return add(law, key, value, small)

            return added

        for law in (laws.Gaussian, laws.SymmetricGaussian, laws.Prefix, laws.Gumbel):
            patch.setattr(law, "add", quieter(law.add))
        patch.setattr(owner, method, asks)

    return plant


mutant("little noise on what a certificate asks")(quiet_in(TrustRegion, "certify"))
mutant("little noise on the scores at the end")(quiet_in(Spider, "finalize"))
mutant("little noise on the accuracy at the end")(quiet_in(_Ending, "finalize"))
mutant("little noise on the count at the end")(quiet_in(_Ending, "finalize"))


@mutant("a person counted once for each record")
def _(patch):
    count_rows = chunks.count_rows

    def count_units(units, flags=None):
        return count_rows(units.weight.ravel(), None, lambda weight: weight > 0)

    patch.setattr(linear_units, "count_units", count_units)


@mutant("an accuracy that is not booked")
def _(patch):
    patch.setattr(_Ending, "event", property(lambda self: self.algorithm.event))
    patch.setattr(prepare, "check_questions", lambda *given: None)  # refuses it before


@mutant("a cap on the number of trainings that is not accounted")
def _(patch):
    of = best_of.BestOf.of

    def uncapped(number, training):
        return of(dataclasses.replace(number, cap=20 * number.cap), training)

    patch.setattr(best_of.BestOf, "of", uncapped)


@mutant("a search booked as one training")
def _(patch):
    def delta(self, epsilons):
        return self.training(np.maximum(epsilons, 0.0))

    patch.setattr(best_of.BestOf, "delta", delta)


def drawn_otherwise(change):
    def plant(patch):
        draw = trials.draw
        patch.setattr(trials, "draw", lambda *args, **kwargs: change(draw(*args, **kwargs)))

    return plant


mutant("a fixed number of trainings")(
    drawn_otherwise(lambda drawn: drawn._replace(live=jnp.arange(drawn.live.size) < 4))
)
mutant("all trainings up to the cap compete")(
    drawn_otherwise(lambda drawn: drawn._replace(live=jnp.ones_like(drawn.live)))
)


@mutant("the score of a search without noise")
def _(patch):
    stddevs = AccuracyQuery.stddevs

    def none(self, params, **public):
        return tuple(1e-3 * stddev for stddev in stddevs(self, params, **public))

    patch.setattr(AccuracyQuery, "stddevs", none)


@mutant("the other trainings in the result")
def _(patch):
    choose = search._choose

    def leaky(stacked, drawn, carries, *args, **kwargs):
        best = choose(stacked, drawn, carries, *args, **kwargs)
        solution = dataclasses.replace(best.solution, history=carries.history)
        return best._replace(solution=solution)

    patch.setattr(search, "_choose", leaky)


def trained_too(patch):
    """Plants that the loop has all parameters; returns what should have been left out, by call."""
    part, left = networks.partition, []

    def all_of_them(model, params, predicate):
        left.append(part(model, params, predicate)[1])
        return params, None

    patch.setattr(networks, "partition", all_of_them)
    return left


mutant("updates of parameters that are not trained")(trained_too)


@mutant("masks by the slot in a batch")
def _(patch):
    """A record that is drawn then moves the masks of all that come after it."""
    original = keyed.random_words

    def by_slot(key, counts):
        return original(key, jnp.arange(counts.shape[0], dtype=jnp.uint32))

    patch.setattr(keyed, "random_words", by_slot)


@mutant("the norm of a gradient counts parameters that are not trained")
def _(patch):
    left, room = trained_too(patch), sys.modules["dpjax.training.fit"]
    publish = room._trained

    def put_back(net, loss, evaluator, solution):
        fixed = left.pop() if left else None
        params = dataclasses.replace(net, fixed=fixed).merged(solution.params)
        return publish(net, loss, evaluator, dataclasses.replace(solution, params=params))

    patch.setattr(room, "_trained", put_back)


@mutant("a selection at every step")
def _(patch):
    answer = oracles.Query.answer

    def always(self, *args, filled, **kwargs):
        return answer(self, *args, filled=self.candidates, **kwargs)

    answering(patch, SelectionQuery, always)


@mutant("a selection in float32")
def _(patch):
    def narrow(matrix):
        return float64(jax.numpy.linalg.eigvalsh(matrix.astype(jnp.float32))[0])

    patch.setattr(score, "_smallest_eigenvalue", narrow)


@mutant("a Newton direction booked by its floor alone")
def _(patch):
    patch.setattr(NewtonQuery, "bound", lambda self, *_, **__: self.clip_norm / self.floor)


@mutant("a minimum that moves by half of G / (n mu)")
def _(patch):
    bound = MinimizerQuery.bound
    patch.setattr(MinimizerQuery, "bound", lambda self, *_, **__: bound(self) / 2)


@mutant("covariance without noise")
def _(patch):
    patch.setattr(MomentQuery, "stddevs", lambda self, *_, **__: (1e-6,))


@mutant("whitening computed before the noise")
def _(patch):
    whole = PreconditionedQuery.arranged

    def secretly(self, records, **public):
        of_features = {"dimension": len(public["preconditioner"])}
        setting = dataclasses.replace(self.setting, **of_features)
        asked = MomentQuery(setting=setting, noise_multiplier=1.0, clip_norm=1.0)
        (moment,) = asked.exact(records, None)
        values, vectors = jnp.linalg.eigh(moment.leading)
        matrix = (vectors / jnp.sqrt(jnp.maximum(values, 1e-6))[None]).T
        return whole(self, records, preconditioner=matrix)

    patch.setattr(PreconditionedQuery, "arranged", secretly)


@mutant("half the noise in the objective")
def _(patch):
    alone = laws.Gaussian.alone

    def quieter(self, *args):
        return jax.tree.map(lambda word: word / 2, alone(self, *args))

    patch.setattr(laws.Gaussian, "alone", quieter)


@mutant("the numbers of a Hessian's noise not charged")
def _(patch):
    patch.setattr(hessian.JointQuery, "noise_draws", oracles.Query.noise_draws)


@mutant("a ledger that pays for no draws")
def _(patch):
    patch.setattr(filters, "_left", lambda budget, draws: (budget.epsilon, budget.delta))


# Keys used twice.


@mutant("a hash of a program without its constants")
def _(patch):
    patch.setattr(_program._Writer, "_constant", lambda writer, constant: str(np.shape(constant)))


@mutant("a hash of a loss without its gradient")
def _(patch):
    patch.setattr(configuration._Reader, "_differentiated", configuration._Reader._program)


@mutant("key reused across steps")
def _(patch):
    patch.setattr(
        oracles.Query, "step_key", lambda self, key, step, **public: keys.derive(key, self.name, 0)
    )


@mutant("key reused across purposes")
def _(patch):
    patch.setattr(keys, "zlib", types.SimpleNamespace(crc32=lambda purpose: 0))


# Two at once.


@mutant("a ledger without a lock between threads")
def _(patch):
    unlocked = types.SimpleNamespace(Lock=contextlib.nullcontext)
    patch.setattr(hash_chain, "threading", unlocked)


@mutant("a key claimed after the training")
def _(patch):
    @contextlib.contextmanager
    def late(key, advice, owner=None):
        if keys.claim(key, advice, owner):
            keys._CLAIMED.clear()
        yield
        with contextlib.suppress(ValueError):
            keys.claim(key, advice, owner)

    for place in (program, progress):
        patch.setattr(place, "claimed", late)


@mutant("an optimizer chain that claims no key")
def _(patch):
    patch.setattr(noise, "claim", lambda *arguments: None)


# Wrappers of optax around a private chain.


def unchecked(check):
    def plant(patch):
        for place in (adaptive, aggregate, chains, noise):
            patch.setattr(place, check, lambda *_, **__: None, raising=False)

    return plant


mutant("a masked leaf past the noise")(unchecked("check_updates"))
mutant("exact updates past a wrapper")(unchecked("check_callers"))


# Clipping.


def finite(rows):
    return jnp.abs(rows) < jnp.finfo(rows.dtype).max


@mutant("no clipping")
def _(patch):
    def factors(clip_norm, *parts, keep=None):
        rows = parts[0][0]
        kept = finite(rows).all(axis=1)
        return jnp.where(kept if keep is None else kept & keep, 1, 0).astype(rows.dtype)

    patch.setattr(clipping, "clip_factors", factors)
    patch.setattr(clipping, "scalar_factor", lambda norm, clip_norm: jnp.ones_like(norm))


@mutant("norms in float32")
def _(patch):
    def factors(clip_norm, *parts, keep=None):
        squares = sum(jnp.sum((rows / weight) ** 2, axis=1) for rows, weight in parts)
        factor = clipping.scalar_factor(jnp.sqrt(squares), clip_norm)
        return factor if keep is None else jnp.where(keep, factor, 0)

    patch.setattr(clipping, "clip_factors", factors)


@mutant("no room for rounding below the clip norm")
def _(patch):
    patch.setattr(clipping, "SLACK", 1.0)


@mutant("spectral clip")
def _(patch):
    frobenius, derivatives, matrices = clipping.clip_factors, general._derivatives, []

    def watched(*args):
        gradients, hessians = derivatives(*args)
        matrices.append(hessians)
        return gradients, hessians

    def factors(clip_norm, *parts, keep=None):
        (rows, weight), *others = parts
        if any(rows is known for known in matrices):
            p = math.isqrt(rows.shape[1])
            rows = jnp.linalg.norm(rows.reshape(-1, p, p), ord=2, axis=(1, 2))[:, None]
        return frobenius(clip_norm, (rows, weight), *others, keep=keep)

    patch.setattr(general, "_derivatives", watched)
    patch.setattr(clipping, "clip_factors", factors)


@mutant("batch mean clipped")
def _(patch):
    each = clipping.clip_factors

    def factors(clip_norm, *parts, keep=None):
        kept = each(clip_norm, *parts, keep=keep) > 0
        means = [
            (jnp.mean(rows, axis=0, where=kept[:, None], keepdims=True), weight)
            for rows, weight in parts
        ]
        return jnp.where(kept, each(clip_norm, *means), 0)

    patch.setattr(clipping, "clip_factors", factors)


@mutant("gradient and Hessian clipped apart, booked as one")
def _(patch):
    def apart(loss, *, gradient_weight, hessian_weight, permutation_invariant):
        def wide(*asked):
            return derivatives.JointSum(
                clipped_grad(
                    loss, clip_norm=gradient_weight, permutation_invariant=permutation_invariant
                ).wide(*asked),
                clipped_hessian(
                    loss, clip_norm=hessian_weight, permutation_invariant=permutation_invariant
                ).wide(*asked),
            )

        return types.SimpleNamespace(wide=wide)

    patch.setattr(hessian, "joint_clipped", apart)


@mutant("subspace gradient and Hessian clipped apart")
def _(patch):
    def apart(loss, *, gradient_weight, hessian_weight, permutation_invariant):
        huge = 1e12

        def wide(*asked):
            first, second = (
                derivatives.subspace_clipped(
                    loss,
                    gradient_weight=g,
                    hessian_weight=h,
                    permutation_invariant=permutation_invariant,
                ).wide(*asked)
                for g, h in ((gradient_weight, huge), (huge, hessian_weight))
            )
            return derivatives.JointSum(first.gradient, second.hessian)

        return types.SimpleNamespace(wide=wide)

    patch.setattr(hessian, "subspace_clipped", apart)


@mutant("a NaN record not dropped")
def _(patch):
    patch.setattr(clipping, "sanitize_nonfinite", lambda values: values)


@mutant("mask ignored")
def _(patch):
    stored = chunks.Chunk.stored
    patch.setattr(chunks.Chunk, "stored", lambda chunk, batch, mask: stored(chunk, batch, None))


@mutant("mask ignored in the closed form")
def _(patch):
    prepare = linear_records.prepare
    patch.setattr(
        linear_records, "prepare", lambda batch, mask=None, **given: prepare(batch, **given)
    )


@mutant("mask of a drawn batch ignored by a chain")
def _(patch):
    whole = aggregate.clipped_sum

    def of_all_rows(rows, norms, mask, permutation_invariant=False):
        del mask
        return whole(rows, norms, None, permutation_invariant)

    for module in (aggregate, adaptive):
        patch.setattr(module, "clipped_sum", of_all_rows)


@mutant("Hessians of several scores measured by their diagonal blocks")
def _(patch):
    def of_diagonal(clip_norm, *parts, keep=None):
        kept = []
        for rows, weight in parts:
            outputs = round(rows.shape[1] ** 0.5)
            diagonal = jnp.arange(rows.shape[1]) % (outputs + 1) == 0
            square = outputs > 1 and outputs**2 == rows.shape[1]
            kept.append((jnp.where(diagonal, rows, 0) if square else rows, weight))
        return clipping.clip_factors(clip_norm, *kept, keep=keep)

    patched = types.SimpleNamespace(**vars(clipping))
    patched.clip_factors = of_diagonal
    patch.setattr(linear_sums, "clipping", patched)


@mutant("sums in float32")
def _(patch):
    def add(self, total, parts):
        narrow = total.leading + jnp.sum(parts, axis=0).astype(total.leading.dtype)
        return Expansion((narrow, *(jnp.zeros_like(term) for term in total.terms[1:])))

    patch.setattr(integers.Summand, "zero", lambda self: zeros(self.shape, self.dtype))
    patch.setattr(integers.Summand, "add", add)
    patch.setattr(integers.Summand, "finish", lambda self, total: total)


@mutant("sums on a coarse grid")
def _(patch):
    patch.setattr(integers, "BITS", 4)


@mutant("an impossible label learnt from")
def _(patch):
    polar = linear_records.polar

    def always(x, sign, good):
        del good
        return polar(x, jnp.where(jnp.isfinite(sign), sign, 0), jnp.ones(sign.shape, bool))

    patch.setattr(linear_records, "polar", always)


@mutant("a direction that is no number in a sum")
def _(patch):
    patch.setattr(linear_records, "finite", lambda directions: directions)


# Accounting that is not of what runs.


@mutant("replace-one booked as add-or-remove")
def _(patch):
    patch.setattr(samplers, "records_moved", lambda relation: 1.0)


@mutant("rounding error not charged")
def _(patch):
    patch.setattr(
        oracles, "sum_rounding_error", lambda rows, relation, permutation_invariant, **_: 0.0
    )


@mutant("a query takes over how its base's sums are made")
def _(patch):
    patch.setattr(oracles.Query, "_sums", property(lambda self: self.sums))


@mutant("all steps booked as one")
def _(patch):
    event = oracles.Query.event
    patch.setattr(oracles.Query, "event", lambda self, count: event(self, 1))


@mutant("every answer with the noise of the last one")
def _(patch):
    patch.setattr(hessian.WeightedQuery, "stddevs", hessian.JointQuery.stddevs)


@mutant("of separate releases the Hessian's is not booked")
def _(patch):
    event = stochastic_trust_region._event

    def of_gradients(stages, steps):
        return event(tuple(queries[:1] for queries in stages), steps)

    patch.setattr(stochastic_trust_region, "_event", of_gradients)


@mutant("one draw for the gradient and the Hessian of separate releases")
def _(patch):
    def step_key(self, key, step, **public):
        return keys.derive(key, GradientQuery.name, step)

    patch.setattr(HessianQuery, "step_key", step_key)


@mutant("divisor is the realised number of rows")
def _(patch):
    answer = oracles.Query.answer

    def divided(self, key, records, params):
        rows = jax.tree.leaves(records)[0].shape[0]
        noisy = answer(self, key, records, params)
        return jax.tree.map(lambda leaf: leaf * (self.data_size / rows), noisy)

    answering(patch, GradientQuery, divided)


@mutant("momentum of raw gradients, before the noise")
def _(patch):
    step, answer, moved = Stagewise.step, oracles.Query.answer, []

    def remembering(self, key, state, ask):
        moved.append((self, state))
        try:
            return step(self, key, state, ask)
        finally:
            moved.pop()

    def pushed(self, key, records, params):
        noisy = answer(self, key, records, params)
        if not moved:
            return noisy
        algorithm, state = moved[-1]
        before = jax.tree.map(jnp.subtract, params, state.previous)
        raw = clipped_grad(self.objective, clip_norm=self.clip_norm)(before, records)
        rho = jnp.where(state.place > 0, algorithm.momentum, 0)
        return jax.tree.map(lambda n, r: n + rho * r / self.divisor, noisy, raw)

    patch.setattr(Stagewise, "step", remembering)
    answering(patch, GradientQuery, pushed)


@mutant("divisor is the realised batch")
def _(patch):
    answer, drawn, sizes = oracles.Query.answer, GradientQuery._drawn, []

    def counting(self, key, records):
        batch, mask = drawn(self, key, records)
        sizes.append(self.data_size if mask is None else jnp.maximum(mask.sum(), 1))
        return batch, mask

    def divided(self, key, records, params):
        noisy = answer(self, key, records, params)
        size = sizes.pop()
        return jax.tree.map(lambda leaf: leaf * (self.divisor / size), noisy)

    patch.setattr(GradientQuery, "_drawn", counting)
    answering(patch, GradientQuery, divided)


# Samplers.


@mutant("float32 coins")
def _(patch):
    def sample(self, key, n):
        drawn = jax.random.bernoulli(key, self.high / 2.0**32 + self.low / 2.0**64, (n,))
        rank = jnp.cumsum(drawn, dtype=jnp.int32)
        place = jnp.arange(self.max_batch_size, dtype=jnp.int32)
        mask = place < rank[-1]
        indices = jnp.searchsorted(rank, place + 1).astype(jnp.int32)
        return sampling.Batch(jnp.where(mask, indices, 0), mask)

    patch.setattr(sampling.Poisson, "sample", sample)


@mutant("an empty batch drawn again")
def _(patch):
    sample = sampling.Poisson.sample

    def never_empty(self, key, n):
        batch = sample(self, key, n)
        return batch._replace(mask=batch.mask.at[0].set(True))

    patch.setattr(sampling.Poisson, "sample", never_empty)


@mutant("the expected batch read off the draw")
def _(patch):
    def sum_scale(self, record_norm, relation, slack=0.0):
        drawn = np.random.default_rng(0).binomial(self.data_size, self.probability)
        return record_norm * self.expected / max(drawn, 1)

    patch.setattr(sampling.Poisson, "sum_scale", sum_scale)


@mutant("a full batch drops records")
def _(patch):
    def sample(self, key, n):
        return sampling.Batch(*skips.geometric_skips(key, self.table, self.max_batch_size, n))

    patch.setattr(sampling.Poisson, "sample", sample)


@mutant("overflow not charged")
def _(patch):
    patch.setattr(sampling.Poisson, "overflow", property(lambda self: 0.0))


@mutant("subsets booked as Poisson")
def _(patch):
    patch.setattr(samplers.WithoutReplacement, "sampling", PoissonRelease.sampling)


@mutant("subsets booked at one record's norm")
def _(patch):
    def privacy_loss(self, relation):  # two records move a subset: 2 C
        return losses.subset_swap, (self.sampling_probability, 1 / self.noise_multiplier)

    patch.setattr(SubsetRelease, "privacy_loss", privacy_loss)


@mutant("the difference's noise at half its distance")
def _(patch):
    whole = DifferenceQuery.bound

    def half(self, params=None, **public):
        return whole(self, params, **public) / (1 if params is None else 2)

    patch.setattr(DifferenceQuery, "bound", half)


# Book-keeping.


@mutant("the uses of a parameter measured separately")
def _(patch):
    def arrays(self, cotangents, residuals, dtype):
        uses = [self._of_layer(n, layer, cotangents, residuals) for n, layer in self.layers]
        count = uses[0].shape[0]
        return tuple(use.reshape(count, -1).astype(dtype) for use in uses)

    def squares(self, arrays):
        with jax.enable_x64(True):
            return sum(clipping.square_norms(rows) for rows in arrays)

    weighted = parts.Materialized.weighted

    def added(self, arrays, factors, size):
        return sum(weighted(self, (rows,), factors, size) for rows in arrays)

    for method in (arrays, squares):
        patch.setattr(parts.Materialized, method.__name__, method)
    patch.setattr(parts.Materialized, "weighted", added)


@mutant("a tied table measured without its cross terms")
def _(patch):
    patch.setattr(ghost_norm, "_crossed", lambda left, right, index, cotangent: 0.0)


@mutant("equal tokens of a record measured separately")
def _(patch):
    patch.setattr(ghost_norm, "_first", lambda index: jnp.arange(index.size))


@mutant("one weight of a loop measured")
def _(patch):
    def squares(self, arrays):
        return jax.vmap(self.one.squares, in_axes=1)(arrays)[0]

    patch.setattr(parts.Stacked, "squares", squares)


@mutant("a layer of rank one measured by its cotangent alone")
def _(patch):
    patch.setattr(parts.Rank1, "squares", lambda self, arrays: clipping.square_norms(arrays[1]))


@mutant("records mixed by a grouped convolution")
def _(patch):
    patch.setattr(primitives, "equation_mixes_examples", lambda equation: False)


# One pass, with correlated noise.


mutant("prefix noise x0.8")(scaled(0.8, tree))
# What is left to a tree's leaf on average hides a smaller bug.
mutant("prefix noise x0.5")(scaled(0.5, tree))


@mutant("a tree booked with a level too few")
def _(patch):
    levels = PrefixNoise.sensitivity.fget
    patch.setattr(
        PrefixNoise,
        "sensitivity",
        property(lambda self: math.sqrt(levels(self) ** 2 - (self.kind == "tree"))),
    )


@mutant("every segment with the same key")
def _(patch):
    def step_key(self, key, step, **public):
        return keys.derive(key, self.name, 0)

    patch.setattr(EstimateQuery, "step_key", step_key)


@mutant("noise for the mean on Spider's sum")
def _(patch):
    def add(self, key, value, stddev):
        noisy = self.of.perturb(key, value, stddev, self.leaf)
        return noisy / jnp.asarray(self.divisor, noisy.dtype)

    patch.setattr(laws.Prefix, "add", add)


@mutant("the batch follows un-noised values")
def _(patch):
    exact = EstimateQuery.exact

    def peeking(self, records, params, mask=None, *, size, **public):
        found = exact(self, records, params, size=size, **public)[0].leading
        loud = jnp.linalg.norm(found) / size > self.clip_norm / self.batch_size / 2
        return exact(self, records, params, size=jnp.where(loud, 4 * size, size), **public)

    patch.setattr(EstimateQuery, "exact", peeking)


@mutant("a difference of few records not clipped to match")
def _(patch):
    patch.setattr(EstimateQuery, "_limit", lambda self, size: math.inf)


@mutant("a rule's batch of no records")
def _(patch):
    def records_by(rule, state, needed, most):
        return jnp.minimum(jnp.ceil(rule(state, needed)), most).astype(jnp.int32)

    patch.setattr(spider_theory, "records_by", records_by)


@mutant("a trust-region link of half the radius")
def _(patch):
    step = second_order.trust_region_step
    patch.setattr(second_order, "trust_region_step", lambda g, h, r, s: step(g, h, r / 2, s))


@mutant("records read again")
def _(patch):
    minibatch = sampling.SinglePass.minibatch

    def first(self, records, start, size, rows):
        return minibatch(self, records, start % 4, size, rows)

    patch.setattr(sampling.SinglePass, "minibatch", first)


@mutant("the cap on a person's records ignored")
def _(patch):
    whole = units.group
    patch.setattr(datasets, "group", lambda data, by, max_records: whole(data, by, 2 * max_records))


@mutant("one person taken for two, by the type of the name")
def _(patch):
    whole = units.unit_name
    typed = lambda cell, kind: f"{type(cell)}{whole(cell, kind)}" * bool(whole(cell, kind))  # noqa: E731
    patch.setattr(units, "unit_name", typed)


@mutant("one person taken for two, by a point in the number")
def _(patch):
    whole = units.unit_name
    written = lambda cell, kind: cell if isinstance(cell, str) else whole(cell, kind)  # noqa: E731
    patch.setattr(units, "unit_name", written)


@mutant("two persons taken for one, by a zero before the number")
def _(patch):
    whole = units.unit_name
    patch.setattr(units, "unit_name", lambda cell, kind: whole(cell, "number") or whole(cell, kind))


@mutant("ids of floats whose dtype is not looked at")
def _(patch):
    patch.setattr(units, "check_names", lambda *given: None)
    patch.setattr(loaders, "check_names", lambda *given: None)


@mutant("a text of several lines taken for several records")
def _(patch):
    whole = delimited.CsvFile.__init__
    by_lines = lambda file, path, _=False, mark=None: whole(file, path, False, mark)  # noqa: E731
    patch.setattr(delimited.CsvFile, "__init__", by_lines)


@mutant("records of a CSV whose schema does not say where they end")
def _(patch):
    patch.setattr(loaders, "undeclared_line_breaks", lambda schema, source: [])


@mutant("two persons taken for one, by names that are not UTF-8")
def _(patch):
    whole = units.unit_name
    replaced = lambda cell: cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell  # noqa: E731
    patch.setattr(units, "unit_name", lambda cell, kind: whole(replaced(cell), kind))


@mutant("levels learnt from the data")
def _(patch):
    whole = encoders.Categorical.encode

    def learnt(column, cells, low=0.0):
        seen = dict.fromkeys(filter(None, map(labels.label_text, cells)))
        levels = (*seen, *map(str, range(-len(column.levels), 0)))[: len(column.levels)]
        return whole(dataclasses.replace(column, levels=levels), cells, low)

    patch.setattr(encoders.Categorical, "encode", learnt)


@mutant("a range learnt from the data")
def _(patch):
    whole = encoders.Numeric.encode

    def learnt(column, cells, low=0.0):
        values = column.values(cells)
        values = values[np.isfinite(values)]
        if len(values):
            column = dataclasses.replace(column, low=values.min(), high=values.max() + 1e-9)
        return whole(column, cells, low)

    patch.setattr(encoders.Numeric, "encode", learnt)


@mutant("weights divided by the largest that there is")
def _(patch):
    whole = arrays.weights
    patch.setattr(arrays, "weights", lambda given, _: whole(given, np.nanmax(given)))


@mutant("records without a weight counted")
def _(patch):
    accepts = linear_losses.WithWeights.accepts

    def counted(kind, y):
        return kind.form.accepts(y[..., 0]) & (y[..., 1] >= 0) | accepts(kind, y)

    patch.setattr(linear_losses.WithWeights, "accepts", counted)


@mutant("a person's records clipped one by one")
def _(patch):
    def of_longest(gram, rows, parts, clip_norm):
        squares = [
            jnp.sum((part / weight) ** 2, axis=2).reshape(part.shape[0], rows, -1)
            for part, weight, _ in parts
        ]
        longest = jnp.sqrt(sum(squares)).max(axis=1).ravel()
        return jnp.minimum(1, linear_units._SLACK * clip_norm / jnp.maximum(longest, 1e-30))

    patch.setattr(linear_units, "_factors", of_longest)


@mutant("records counted that a person does not have")
def _(patch):
    whole = linear_units.prepare_units

    def filled(examples, mask, reduction, **given):
        records, present = examples
        everybody = (jax.tree.map(jnp.nan_to_num, records), present | True)
        return whole(everybody, mask, reduction, **given)

    patch.setattr(linear_units, "prepare_units", filled)


# Rows that are read from disk.


@mutant("rows of a file one late")
def _(patch):
    read = MappedFile.read
    patch.setattr(MappedFile, "read", lambda file, start, out: read(file, max(start - 1, 0), out))


@mutant("a mirror map taken unchecked")
def _(patch):
    patch.setattr(mirror_descent, "_check_pair", lambda *given: None)


# The audit of one run.


@mutant("canaries guessed by who knows the coins")
def _(patch):
    patch.setattr(one_run, "right_guesses", lambda scores, included, half: 2 * half)


@mutant("a canary at twice the clip norm")
def _(patch):
    exact = GradientQuery._exact_parts

    def doubled(self, key, records, params, **public):
        (total,) = exact(self, key, records, params, **public)
        last = 2 * total.terms[-1] if "included" in public else total.terms[-1]
        return (Expansion((*total.terms[:-1], last)),)

    patch.setattr(GradientQuery, "_exact_parts", doubled)


@mutant("a certificate of gradients that hold canaries")
def _(patch):
    patch.setattr(ending._WithCanaries, "certify", ending._of_training("certify"))


@mutant("dependent guesses taken to be independent")
def _(patch):
    def binomial(canaries, *test):
        return one_run.independent_bound(*test)

    patch.setattr(one_run, "curve_bound", binomial)
