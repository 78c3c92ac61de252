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
# # A network, an optimizer, and an honest epsilon
#
# You have a flax network and an optax optimizer. This notebook makes the training private: first by
# one line in an optax chain, in a loop of your own; then by `dpjax.fit`, which brings the loop. It
# runs a published method, stagewise steps with early momentum, beside constant steps, and looks at
# what clipping does to the gradients of single images.
#
# A cell that uses exact records for anything but training starts with `NOT PRIVATE`. The first
# notebook explains the guarantee itself.

# %%
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import dpjax

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams.update(
    {"figure.dpi": 80, "figure.constrained_layout.use": True, "legend.frameon": False}
)

# %% [markdown]
# ## The records
#
# MNIST: 60,000 images of handwritten digits, 28 by 28, from 0 to 1. It is not part of dpjax; set
# `DPJAX_DATA` to a folder that has `mnist.npz`. Where there is none, the cell below makes a
# stand-in, with which all that follows runs, but the numbers in the text are those of MNIST.


# %%
def made_digits(rows, test_rows):
    """Small digits of scikit-learn, three times as large, each row one of them moved a little."""
    from sklearn.datasets import load_digits

    small = load_digits()
    large = np.pad(np.kron(small.images / 16, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    rng = np.random.default_rng(0)

    def draw(low, high, count):
        chosen = rng.integers(low, high, count)
        moves = rng.integers(-2, 3, (count, 2))
        images = [np.roll(large[i], move, (0, 1)) for i, move in zip(chosen, moves, strict=True)]
        return np.array(images, np.float32), small.target[chosen].astype(np.int32)

    train, test = draw(0, 1500, rows), draw(1500, len(large), test_rows)
    return dpjax.datasets.Dataset(*train, *test, name="made digits", unit="image")


try:
    data = dpjax.datasets.load("mnist")
except FileNotFoundError as absent:
    data = made_digits(20_000, 2_000)
    print(f"NO MNIST HERE, a stand-in is used, with other numbers than in the text:\n{absent}\n")
n = data.size
held_out = (data.test_x[:2_000], data.test_y[:2_000])
print(f"{data.name}: {n:,} records to train on; one record is an {data.unit}")

figure, axes = plt.subplots(1, 10, figsize=(9.5, 1.2))
for axis, image, label in zip(axes, *held_out, strict=False):
    axis.imshow(image, cmap="gray_r")
    axis.set_title(label, fontsize=10)
    axis.set_axis_off()
plt.show()

# %% [markdown]
# The images shown are from the test set, which no training here sees. The guarantee is for *one
# image*. Whoever wrote several digits is protected less; who wrote which is another column, and a
# record would then have to be a writer.
#
# ## One line in a chain
#
# The network is the one of the papers on private training, 26,010 numbers. A private step differs
# from an ordinary one in three places:
#
# 1. the records of a step are *drawn*, each with the same probability, independently of all others;
# 2. the gradient of *each record* is clipped to a norm of at most `clip_norm`, then they are added;
# 3. the optimizer receives that sum with Gaussian noise, divided by a number declared beforehand.
#
# `clipped_grad` does the second, and costs little more than the gradient of the mean. `noisy_sgd`
# does the third, then what `optax.sgd` does. Noise enters before momentum, so momentum, learning
# rate and schedule see released numbers only, and are free.

# %%
STEPS, BATCH, CLIP = 30, 2048, 0.1
budget = dpjax.PrivacyBudget(epsilon=3.0, delta=1e-5)  # relation="zero_out"
start_key, draw_key, noise_key = jax.random.split(jax.random.key(0), 3)

network = dpjax.models.CNN()
start = network.init(start_key, data.x[0])["params"]
loss = dpjax.objectives.cross_entropy(lambda params, x: network.apply({"params": params}, x))

sampler = dpjax.sampling.poisson(BATCH, n, budget=budget, count=STEPS)
multiplier = dpjax.accounting.gaussian_multiplier(budget, STEPS, sampler=sampler)
gradient = dpjax.clipped_grad(loss, clip_norm=CLIP)
optimizer = dpjax.transforms.noisy_sgd(
    optax.cosine_decay_schedule(8.0, STEPS, alpha=0.02),
    momentum=0.9,
    clip_norm=CLIP,
    noise_multiplier=multiplier,
    sampler=sampler,
    key=noise_key,
)


@jax.jit
def train(params, examples):
    def step(carry, key):
        params, state = carry
        batch = sampler.sample(key, n)
        records = jax.tree.map(lambda leaf: leaf[batch.indices], examples)
        total = gradient(params, records, batch.mask)
        updates, state = optimizer.update(total, state, params)
        return (optax.apply_updates(params, updates), state), None

    first = params, optimizer.init(params)
    (params, _), _ = jax.lax.scan(step, first, jax.random.split(draw_key, STEPS))
    return params


params = train(start, (jnp.asarray(data.x), jnp.asarray(data.y)))

# %% [markdown]
# `jax.random.key(0)` makes this page reproducible, and **spoils the privacy**: take
# `dpjax.random_key()` for a network that you release.
#
# What the run has released is asked of the optimizer that added the noise. A loop of your own is
# your own promise: one draw of that sampler a step, and no more steps than you ask about.

# %%
print(f"batches hold {BATCH} of {n:,} on average, {sampler.max_batch_size} at most")
print(f"the noise on a sum has {multiplier:.2f} times the clip norm, in every coordinate")
for steps in (STEPS, 2 * STEPS, 4 * STEPS):
    spent = dpjax.accounting.epsilon(optimizer.event(steps), budget.delta, budget.relation)
    print(f"after {steps:3} such steps: epsilon {spent:.2f} at delta {budget.delta:g}")

# %%
# NOT PRIVATE with regard to the test images, whose exact mean it is.
logits = jax.jit(jax.vmap(lambda x: network.apply({"params": params}, x)))(held_out[0])
print(f"held-out accuracy after {STEPS} steps: {np.mean(logits.argmax(1) == held_out[1]):.1%}")

# %% [markdown]
# Other optimizers too: `optax.chain(dpjax.transforms.noisy_mean(...), optax.lion(1e-3))`.
# The noisy mean comes first; whatever stands after it is post-processing.
#
# ## The same, with the loop
#
# `dpjax.fit` takes a flax module, linen or nnx, or a function, and any optax optimizer. It
# calibrates the noise to the budget, draws on the device, takes many steps in one program, and
# measures held-out images on the way. At a terminal a progress bar names the epsilon of the *whole*
# run, for that is what is spent, also by a run that is interrupted; `checkpoint=` and `ledger=`
# make one that can be resumed and is booked. Two optimizers, for the same budget:

# %%
STEPS = 90
shared = {"batch_size": BATCH, "clip_norm": CLIP, "progress": False, "held_out": held_out}
OPTIMIZERS = {
    "SGD, momentum 0.9": optax.sgd(optax.cosine_decay_schedule(8.0, STEPS, alpha=0.02), 0.9),
    "Adam": optax.adam(optax.cosine_decay_schedule(4e-3, STEPS, alpha=0.02)),
}
looks = {"evaluate_every": 10 * BATCH / n}  # in epochs: every ten steps
trained = {}
for name, optimizer in OPTIMIZERS.items():
    trained[name] = dpjax.fit(
        network,
        "cross_entropy",
        data,
        budget,
        optimizer,
        key=jax.random.key(1),
        steps=STEPS,
        **shared,
        **looks,
    )
best = trained["SGD, momentum 0.9"]
print(best.guarantee())

# %% [markdown]
# The statement says what is covered: *every* iterate, so you may publish any, or the curve of
# `solution.history`. It does not cover the held-out images, nor the choice of learning rate, clip
# norm and network. These were tuned on MNIST itself, as in the literature, which is **not
# private**; for records of your own, tune on public data that resemble them.

# %%
# NOT PRIVATE with regard to the held-out images.
figure, axes = plt.subplots(figsize=(7.5, 4))
for (name, result), color, line in zip(trained.items(), (BLUE, ORANGE), ("-", "--"), strict=True):
    table = result.exact_held_out
    axes.plot(
        table["epoch"],
        100 * table["accuracy"],
        color=color,
        linestyle=line,
        marker="o",
        markersize=4,
        label=f"{name}: {table['accuracy'][-1]:.1%} at the end",
    )
axes.set(
    xlabel="epochs",
    ylabel="held-out accuracy (%)",
    ylim=(None, 100),
    title=f"{data.name}, epsilon {budget.epsilon:g}, {budget.relation}, one run each",
)
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
# Three epochs are enough here; five times as many take SGD to 97.6 % for the same epsilon. In
# private training large batches pay, for the noise is added once to each sum; and a small clip norm
# with a large learning rate, for the noise is in proportion to the clip norm. Adam divides by the
# size of the gradients, and what it sees of that size is mostly the noise.
#
# ## What is refused
#
# Some things that are harmless elsewhere break the guarantee. `fit` says so before anything is
# spent.


# %%
class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(32)(x.reshape(x.shape[0], -1))
        return nn.Dense(10)(nn.relu(nn.BatchNorm(use_running_average=False)(x)))


fits = functools.partial(dpjax.fit, key=jax.random.key(2), steps=STEPS, **shared)
for model, optimizer in (
    (network, optax.MultiSteps(optax.sgd(1.0), every_k_schedule=4)),
    (Normalised(), optax.sgd(1.0)),
):
    try:
        fits(model, "cross_entropy", data, budget, optimizer)
    except ValueError as refusal:
        print(refusal, end="\n\n")

# %% [markdown]
# ## Stages, and momentum at the start of each
#
# DPageEM trains in *stages*. From one to the next the step size halves and the number of steps
# doubles: large steps while there is far to go, small ones when the noise is what is left. Momentum
# keeps the direction of the steps before, noise included. So it is on only in the first half of
# each stage, where speed matters, and off in the second, where the noise should calm down. The
# paper's other methods are settings of the same code, four of them here:
#
# | | steps | momentum |
# |---|---|---|
# | DPageEM | by stages | early in each |
# | DPageS | by stages | never |
# | DP-SGDM-const | constant | always |
# | DP-SGD-const | constant | never |
#
# All have the same first step size, batches, clip norm and epsilon, hence the same noise. `fit`
# takes the factory where it takes an optimizer.

# %%
PLAN = {"steps": 140, "batch_size": 256, "clip_norm": 1.0}
METHODS = {
    "DPageEM": ({"stages": 3}, ORANGE, "-"),
    "DPageS": ({"stages": 3, "momentum_when": "never"}, BLUE, "-."),
    "DP-SGDM-const": ({"schedule": "constant", "momentum_when": "always"}, GREEN, "--"),
    "DP-SGD-const": ({"schedule": "constant", "momentum_when": "never"}, PINK, ":"),
}
wide = dpjax.PrivacyBudget(epsilon=8.0, delta=1e-5)
runs = {}
for name, (settings, *_) in METHODS.items():
    runs[name] = dpjax.fit(
        network,
        "cross_entropy",
        data,
        wide,
        functools.partial(dpjax.dpagem, step_size=2.0, **settings),
        key=jax.random.key(3),
        held_out=held_out,
        evaluate_every=10 * PLAN["batch_size"] / n,
        progress=False,
        **PLAN,
    )
    print(f"{name:14} epsilon {runs[name].epsilon(wide.delta):.3f}")

# %%
# NOT PRIVATE with regard to the held-out images: the accuracies. The lengths of steps are released.
starts = PLAN["steps"] * np.array([0, 1, 3]) / 7
lengths = PLAN["steps"] * np.array([1, 2, 4]) / 7
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
for name, (_, color, line) in METHODS.items():
    table, history = runs[name].exact_held_out, runs[name].solution.history
    left.plot(table["step"], 100 * table["accuracy"], color=color, linestyle=line, label=name)
    walked = np.asarray(history.step_norm)[: PLAN["steps"]]
    right.plot(np.arange(1, len(walked) + 1), walked, color=color, linestyle=line, linewidth=1)
    print(f"{name:14} {table['accuracy'][-1]:.1%} at the end")
for axes in (left, right):
    for k, (begin, length) in enumerate(zip(starts, lengths, strict=True)):
        axes.axvspan(begin, begin + length / 2, color=ORANGE, alpha=0.08, linewidth=0)
        axes.axvline(begin, color="0.6", linewidth=0.8)
        where = axes.get_xaxis_transform()
        axes.text(begin + 2, 0.97, f"stage {k}", color="0.4", va="top", size=7, transform=where)
    axes.set(xlabel="step", xlim=(0, PLAN["steps"]))
left.set(ylim=(50, 100), ylabel="held-out accuracy (%)", title="Shaded: DPageEM's momentum is on")
right.set(yscale="log", ylim=(None, 4), ylabel="length (units of the parameters)")
right.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
right.minorticks_off()
right.set_title("The length of each step")
left.legend(loc="lower right")
figure.suptitle(f"{data.name}, epsilon {wide.epsilon:g}, {wide.relation}, one run each")
plt.show()

# %% [markdown]
# DP-SGDM-const is as fast as any at first, and then gets no further: with momentum 0.9 a step leads
# ten times as far in the end, and so does its noise. DPageEM begins as fast; when momentum goes off
# and steps get shorter it keeps what it has, and goes on. DPageS is calm, and slow: its steps halve
# before it has got far. Constant steps without momentum are late at first, and end about where
# DPageEM does.
#
# This is one run each of less than an epoch, too short for the end of the story. In the paper,
# after many epochs, DPageS ends best, DPageEM below it, and momentum that is always on last. Small
# steps pay when noise is what is left; momentum is for those who have to stop earlier.
#
# ## Why clip, and how much
#
# Everything rests on the bound on one record's gradient. How long are they without it? For 512 test
# images, at the start and at the end of the run with SGD above:


# %%
# NOT PRIVATE: exact gradients of single images.
@jax.jit
def lengths_of(params, images, labels):
    one = lambda x, y: optax.tree.norm(jax.grad(loss)(params, (x, y)))  # noqa: E731
    return jax.vmap(one)(images, labels)


few = (data.test_x[:512], data.test_y[:512])
norms = {
    "before training": (np.asarray(lengths_of(start, *few)), "0.5"),
    "after training": (np.asarray(lengths_of(best.params, *few)), BLUE),
}
figure, axes = plt.subplots(figsize=(8.5, 4))


def share(values):
    """Of all lengths together, that of the longest tenth."""
    return np.sort(values)[-51:].sum() / values.sum()


for name, (values, color) in norms.items():
    axes.ecdf(values, color=color, label=name)
    print(
        f"{name:16} median {np.median(values):.3f}, longest {values.max():5.2f}; the longest tenth "
        f"has {share(values):.0%} of the length, clipped {share(np.minimum(values, CLIP)):.0%}; "
        f"{np.mean(values > CLIP):.0%} are clipped"
    )
axes.axvline(CLIP, color=ORANGE, linestyle="--", label=f"clip norm {CLIP}")
axes.set(
    xscale="log",
    xlabel="norm of the gradient of one image",
    xlim=(1e-4, 1e2),
    ylabel="share of images with at most this",
    title="Most images are learned; a few still pull hard",
)
axes.legend()
plt.show()

# %% [markdown]
# At the start all gradients are about equally long, and all are clipped: what is left of each is
# its direction. After training most are short, and a few, of images that the network gets wrong,
# are thousands of times as long as the median. Without clipping the sum would be theirs, and noise
# that hides the longest, which nothing bounds, would drown the others. Clipped, they count for more
# than the others still, but no longer for everything.
#
# So a clip norm trades noise, which is in proportion to it, for bias, as long gradients are cut. To
# read it off the exact norms, as here, would be an unprotected release. There are two private ways:
# a clip norm far below most norms, with a large learning rate, as above, which hardly depends on
# the norms; or `dpjax.transforms.adaptive_clip_and_noise`, which lets it follow a quantile of the
# norms by a noisy count at each step. Count and gradient are accounted as one release, and the
# count is so cheap that the noise on the gradient hardly grows.
