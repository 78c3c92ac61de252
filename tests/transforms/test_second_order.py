"""The trust-region link: ``solve``'s steps to the bit in a loop by hand, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import BUDGET, P, toy_records

import dpjax
from dpjax import mechanisms, transforms
from dpjax.driver.loop import configuration_key
from dpjax.mechanisms import derive
from dpjax.oracles import bind

X, Y = toy_records()
OBJECTIVE = dpjax.objectives.logistic_nonconvex()
STEPS = 5
SADDLE = jnp.diag(jnp.array([-1.0, 3.0]))


def of_queries(algorithm, key, records, params, step):
    """The released model, as ``solve`` asks for it."""
    answers = [q.answer(q.step_key(key, step), records, params) for q in algorithm.queries]
    return answers[0] if len(answers) == 1 else answers


def of_blocks(algorithm, key, records, params, step):
    """The same by public functions and ``solve``'s keys; a sum passes through the dtype of x."""
    data, first, last = algorithm.objective.data_term, algorithm.queries[0], algorithm.queries[-1]
    if first is last:
        weights = {"hessian_weight": first.hessian_weight, "gradient_weight": first.gradient_weight}
        sums, stddevs = dpjax.joint_clipped(data, **weights)(params, (X, Y)), first.stddevs(params)
    else:
        clipped = (dpjax.clipped_grad, first), (dpjax.clipped_hessian, last)
        sums = [make(data, clip_norm=q.clip_norm)(params, (X, Y)) for make, q in clipped]
        stddevs = first.stddevs(params) + last.stddevs(params)
    keys = [
        derive(q.step_key(key, step), name, 0)
        for q, name in ((first, "gradient"), (last, "hessian"))
    ]
    gradient = mechanisms.perturb(keys[0], sums[0], stddevs[0])
    hessian = mechanisms.add_symmetric_gaussian(keys[1], sums[1], stddevs[1])
    return gradient / first.divisor, hessian / last.divisor


def by_hand(ask, algorithm, key, records, carry, step):
    """One update of a loop as users write it."""
    params, state = carry
    radius = lambda count: algorithm.radius * algorithm.radius_decay ** count.astype(params.dtype)  # noqa: E731
    link = transforms.trust_region(radius, damping=algorithm.damping)
    # In the dtype of the parameters, as a step of ``solve`` gets its answers.
    answers = ask(algorithm, key, records, params, step)
    gradient, hessian = (answer.astype(params.dtype) for answer in answers)
    gradient = algorithm.objective.regularize_gradient(gradient, params)
    hessian = algorithm.objective.regularize_hessian(hessian, params)
    moves, state = link.update(gradient, state, params, hessian=hessian)
    return optax.apply_updates(params, moves), state


def trained(release):
    """A training of DP-TR, and what a loop by hand needs to draw the same noise."""
    sizes = {"data_size": len(Y), "dimension": P, "steps": STEPS, "release": release}
    algorithm = dpjax.dp_trust_region(OBJECTIVE, BUDGET, **sizes, filtering=False)
    root, params = jax.random.key(7), jnp.zeros(P)
    solution = dpjax.solve(algorithm, (X, Y), key=root)
    key = configuration_key(root, algorithm, (X, Y), params)
    return algorithm, key, bind(algorithm.queries[0], (X, Y)), params, solution


@pytest.mark.optimised
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("release", ["joint", "separate"])
def test_a_loop_by_hand_gives_the_bits_of_solve(release, x64):
    """Where its step is one program whose numbers are arguments, as they are ``solve``'s."""
    with jax.enable_x64(x64):
        algorithm, key, records, params, solution = trained(release)
        far = []
        for ask in (of_queries, of_blocks):
            step = jax.jit(functools.partial(by_hand, ask))
            carry = params, transforms.trust_region(1.0).init(params)
            for number in range(STEPS):
                carry = step(algorithm, key, records, carry, jnp.array(number))
            far.append(float(jnp.abs(carry[0] - solution.params).max()))
            assert carry[0].dtype == solution.params.dtype and int(carry[1].count) == STEPS
        assert far[0] == 0 and float(carry[1].multiplier) >= 0
        # A sum that is rounded before its noise may cross a cell of the noise's grid.
        assert far[1] <= 1e-5
        # Constants in place of arguments are folded by the compiler, and eager steps are not fused.
        fixed = functools.partial(by_hand, of_queries, algorithm, key, records)
        for step in (jax.jit(fixed), fixed):
            carry = params, transforms.trust_region(1.0).init(params)
            for number in range(STEPS):
                carry = step(carry, jnp.array(number))
            assert float(jnp.abs(carry[0] - solution.params).max()) <= 1e-4


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
def test_parameters_are_a_tree_of_any_floating_dtype(dtype):
    with jax.enable_x64(dtype == jnp.float64):
        wide = jnp.promote_types(dtype, jnp.float32)
        params = {"b": jnp.ones((), dtype), "w": jnp.ones((2, 1), dtype)}
        gradient = jax.tree.map(lambda leaf: leaf * jnp.asarray(3, dtype), params)
        hessian = jnp.diag(jnp.array([1.0, -2.0, 4.0], wide))
        link = optax.chain(optax.identity(), transforms.trust_region(0.5, damping=0.25))

        @jax.jit
        def train(scale):
            def step(carry, _):
                moves, state = link.update(gradient, carry[1], carry[0], hessian=scale * hessian)
                return (optax.apply_updates(carry[0], moves), state), moves

            return jax.lax.scan(step, (params, link.init(params)), length=2)

        (after, _), moves = train(jnp.ones((), wide))
        wanted, _ = dpjax.trust_region_step(jnp.full(3, 3, wide), hessian + 0.25 * jnp.eye(3), 0.5)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(after))
        assert moves["w"].dtype == wide and moves["w"].shape == (2, 2, 1)
        first = np.append(moves["b"][0], moves["w"][0])
        np.testing.assert_allclose(first, wanted, rtol=1e-5, atol=1e-6)
        several = jax.vmap(train)(jnp.array([1.0, 2.0], wide))
        np.testing.assert_allclose(several[1]["w"][0], moves["w"], rtol=1e-4, atol=1e-5)


def test_a_schedule_is_read_at_the_number_of_the_update_and_only_symmetric_parts_count():
    shrinking = optax.exponential_decay(2.0, 1, 0.5)
    link = transforms.trust_region(shrinking, damping=optax.constant_schedule(0.0))
    gradient, state = jnp.array([0.0, 4.0]), link.init(jnp.zeros(2))
    assert float(state.multiplier) == np.inf
    for radius in (2.0, 1.0, 0.5):
        move, state = link.update(gradient, state, hessian=SADDLE)
        assert float(jnp.linalg.norm(move)) == pytest.approx(radius)
    skew = jnp.array([[0.0, 5.0], [-5.0, 0.0]])
    still = link.init(jnp.zeros(2))
    steps = [link.update(gradient, still, hessian=h)[0] for h in (SADDLE, SADDLE + skew)]
    np.testing.assert_allclose(*jnp.abs(jnp.stack(steps)), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"radius": 0.0}, "radius must be a finite number above 0"),
        ({"radius": -1.0}, "radius must be a finite number above 0"),
        ({"radius": np.nan}, "radius must be a finite number above 0"),
        ({"radius": np.inf}, "radius must be a finite number above 0"),
        ({"radius": None}, "radius must be a number"),
        ({"radius": jnp.ones(2)}, "radius must be a number"),
        ({"radius": 1.0, "damping": -1.0}, "damping must be a finite number of at least 0"),
        ({"radius": 1.0, "solver": "exact"}, "solver must be a solver"),
        ({"radius": optax.constant_schedule(-1.0)}, "radius must be a finite number above 0"),
        ({"radius": lambda count: jnp.ones(2)}, "radius must be a number"),
        ({"radius": 1.0, "damping": lambda count: -1.0}, "damping must be"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, words):
    with pytest.raises(ValueError, match=words):
        link = transforms.trust_region(**settings)
        link.update(jnp.ones(2), link.init(jnp.ones(2)), hessian=SADDLE)


@pytest.mark.parametrize(
    ("hessian", "got"),
    [
        (None, "none"),
        (jnp.ones(2), r"float32 of shape \(2,\)"),
        (jnp.ones((3, 3)), r"float32 of shape \(3, 3\)"),
        (jnp.ones((2, 2), int), r"int32 of shape \(2, 2\)"),
        (jnp.ones((2, 2), jnp.float16), r"float16 of shape \(2, 2\)"),
    ],
)
def test_what_is_no_hessian_of_the_parameters_is_refused(hessian, got):
    link = optax.chain(optax.identity(), transforms.trust_region(1.0))
    state, given = link.init(jnp.ones(2)), {} if hessian is None else {"hessian": hessian}
    for update in (link.update, jax.jit(link.update)):
        with pytest.raises(ValueError, match=rf"float32 of shape \(2, 2\), got {got}.*hessian=H"):
            update(jnp.ones(2), state, jnp.ones(2), **given)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("p", [2, 300])
def test_what_is_not_finite_or_turns_negative_in_a_program_gives_nan(p, bad):
    """A solver may overlook it: Lanczos did a NaN off the diagonal."""
    link = transforms.trust_region(lambda count: 1.0 - count)
    gradient, hessian, state = jnp.ones(p), jnp.eye(p), link.init(jnp.ones(p))
    update = jax.jit(lambda g, h, state: link.update(g, state, hessian=h))
    spoiled = (gradient.at[0].set(bad), hessian), (gradient, hessian.at[0, 1].set(bad))
    for pair in spoiled:
        move, after = update(*pair, state)
        assert np.isnan(move).all() and np.isnan(after.multiplier)
    move, state = update(gradient, hessian, state)
    assert np.isfinite(move).all()
    for _ in range(2):  # the radius is 0, and then below
        move, state = update(gradient, hessian, state)
        assert np.isnan(move).all()


def test_two_chains_and_a_link_spend_what_their_events_say():
    """A gradient and a Hessian, each by ``noisy_mean``: together the budget, in either order."""
    steps, n = 4, len(Y)
    multiplier = dpjax.accounting.gaussian_multiplier(BUDGET, 2 * steps)
    means = [
        transforms.noisy_mean(
            clip, noise_multiplier=multiplier, sampler=dpjax.sampling.full_batch(n),
            key=jax.random.key(seed),
        )
        for seed, clip in enumerate((1.0, 0.25))
    ]  # fmt: skip
    event = dpjax.accounting.compose([mean.event(steps) for mean in means])
    assert 0.99 < dpjax.accounting.epsilon(event, BUDGET.delta, BUDGET.relation) <= BUDGET.epsilon
    # Noise on all entries of a Hessian is isometric noise once it is made symmetric.
    zeros = jnp.zeros((100, 100))
    noisy, _ = means[1].update(zeros, means[1].init(zeros))
    symmetric = np.asarray(noisy + noisy.T)[np.triu_indices(100, 1)] / 2
    stddev = event.releases[1].stddev
    assert symmetric.std() == pytest.approx(stddev / 2**0.5, rel=0.05)  # 7 standard errors
    assert np.diag(noisy).std() == pytest.approx(stddev, rel=0.4)
