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
# # A transformer, first on public text, then on private
#
# Few private records cannot teach a network a language. They can change one that knows it. This
# notebook trains a small transformer on public text, without privacy; then adapts it, by LoRA, to
# text of another kind, with a guarantee for each *unit* that wrote it. All text comes with Python
# and the packages of this notebook, so nothing is downloaded.
#
# A cell that uses exact records for anything but private training starts with `NOT PRIVATE`.

# %%
import functools
import importlib.util
import inspect
import pathlib
import sysconfig
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import dpjax

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "0.55"  # safe for colour-blind eyes
plt.rcParams.update(
    {"figure.dpi": 80, "figure.constrained_layout.use": True, "legend.frameon": False}
)

# %% [markdown]
# ## Tokens of public text
#
# The public text is what `help()` says about Python's grammar. A transformer reads tokens. By
# *byte-pair encoding* the most frequent pair of neighbours becomes a token, again and again, until
# there are 512. The rule is learned on the public text alone: a vocabulary that is collected from
# private text is a release of it, and a rare name among the tokens tells that somebody wrote it.

# %%
VOCABULARY, LENGTH = 512, 48


def as_bytes(text):
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)


def joined(tokens, pair, new):
    """Puts ``new`` in the place of each ``pair``."""
    hits = (tokens[:-1] == pair[0]) & (tokens[1:] == pair[1])
    hits[1:] &= ~hits[:-1]  # pairs that overlap
    first = np.flatnonzero(hits)
    tokens = np.delete(tokens, first + 1)
    tokens[first - np.arange(len(first))] = new
    return tokens


stream = as_bytes("\n\n".join(topics.values()))
size, pairs, pieces = len(stream), [], [chr(i) for i in range(128)]
for new in range(128, VOCABULARY):
    counts = np.bincount(stream[:-1] * VOCABULARY + stream[1:])
    pair = divmod(int(counts.argmax()), VOCABULARY)
    stream = joined(stream, pair, new)
    pairs.append(pair)
    pieces.append(pieces[pair[0]] + pieces[pair[1]])


def text_of(tokens):
    return "".join(pieces[token] for token in tokens if token)


def encode(texts):
    """Returns the first tokens of each text, (texts, LENGTH); 0 is padding."""
    tokens = as_bytes("\0".join(text[: 8 * LENGTH].replace("\0", "") for text in texts))
    for new, pair in enumerate(pairs, 128):
        tokens = joined(tokens, pair, new)
    rows = np.zeros((len(texts), LENGTH), np.int32)
    for row, text in zip(rows, np.split(tokens, np.flatnonzero(tokens == 0)), strict=True):
        text = text[text != 0][:LENGTH]
        row[: len(text)] = text
    return rows


print(f"{size:,} characters are {len(stream):,} tokens; the last words to become one:")
print([piece for piece in pieces if piece.strip().isalpha() and len(piece) > 4][-10:])

# %% [markdown]
# ## Public: train everything
#
# The model's dense layers have low-rank changes beside them (`rank=4`), which are zero at first.
# Here they stay so, and all else is trained, by plain optax. There is no clipping and no noise:
# this is allowed because the text is public.

# %%
# NOT PRIVATE: whatever the network now learns by heart is in it.
model = dpjax.models.Transformer(VOCABULARY, width=64, depth=2, heads=4, rank=4)


def adapts(path, leaf):
    """Whether a parameter is one of LoRA's."""
    return any("lora" in name for name in path)


def adapters(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: adapts([entry.key for entry in path], leaf), params
    )


def loss(params, tokens):  # the mean over the tokens of one sequence
    return dpjax.models.next_token(model.apply({"params": params}, tokens), tokens)


loss_of_unit = dpjax.objectives.Objective(loss).of_units()  # the mean over its sequences


@functools.partial(jax.jit, static_argnames=("rate", "steps", "batch", "adapt"))
def train_without_privacy(params, units, rate, steps, batch, adapt):
    """Adam, on the adapters or on all else; returns parameters and the loss of each step."""
    frozen = jax.tree.map(lambda flag: flag != adapt, adapters(params))
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps, 0.05))
    optimizer = optax.selective_transform(adam, freeze_mask=frozen)

    def mean_loss(params, batch):
        return jnp.mean(jax.vmap(loss_of_unit, (None, 0))(params, batch))

    def step(carry, key):
        params, state = carry
        chosen = jax.random.randint(key, (batch,), 0, len(units[1]))
        drawn = jax.tree.map(lambda leaf: leaf[chosen], units)
        value, gradient = jax.value_and_grad(mean_loss)(params, drawn)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), value

    first = params, optimizer.init(params)
    (params, _), values = jax.lax.scan(step, first, jax.random.split(jax.random.key(1), steps))
    return params, values


windows = np.lib.stride_tricks.sliding_window_view(stream, LENGTH)[::12, None]
public = jnp.asarray(windows), jnp.ones(windows.shape[:2], bool)
start = jax.jit(model.init)(jax.random.key(0), windows[0, 0])["params"]
pretrained, values = train_without_privacy(
    start, public, rate=4e-3, steps=1000, batch=32, adapt=False
)
print(f"loss per token: {values[0]:.2f} at the start, {values[-50:].mean():.2f} at the end")

# %% [markdown]
# ## Private: whose is a record?
#
# The text to adapt to are docstrings, of the standard library and of packages. They are in truth
# public as well; let us treat them as the writings of people who did not agree to publish them. One
# *record* is a docstring. But who writes a module writes several, in one manner and about one
# matter, so that to hide one docstring hides little. The **unit** is the module: the guarantee is
# about all its docstrings together. The first two of each count, a number that was declared and not
# looked up.
#
# Units should not write together. Modules of one package do: they share authors, manners, and
# sentences that were copied. Whoever wrote twenty modules is protected far less than one module.
# Where you know the authors, take them.

# %%
PACKAGES = "numpy", "scipy", "jax", "flax", "optax", "matplotlib", "sklearn"
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests"}


def docstrings(path):
    """Texts in triple quotes that begin a line."""
    parts = path.read_text(encoding="utf-8", errors="replace").split('"""')
    for before, text in zip(parts[::2], parts[1::2], strict=False):
        if before.rpartition("\n")[2].strip() in ("", "r") and text.strip():
            yield inspect.cleandoc(text)


folders = [pathlib.Path(importlib.util.find_spec(name).origin).parent for name in PACKAGES]
texts, owners = [], []
for folder in (pathlib.Path(sysconfig.get_path("stdlib")), *folders):
    for path in sorted(folder.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(folder).parts):
            for text in docstrings(path):
                texts.append(text)
                owners.append(str(path.relative_to(folder.parent)))

tokens = encode(texts)
modules = np.random.default_rng(0).permutation(np.unique(owners))
held = np.isin(owners, modules[:300])  # whole modules


def units_of(chosen):
    records = dpjax.datasets.Dataset(tokens[chosen], tokens[chosen], name="docstrings")
    return dpjax.datasets.group(records, np.array(owners)[chosen], max_records=2, unit="module")


private, held_out = units_of(~held), units_of(held)
n = private.size
print(f"{len(texts):,} docstrings of {len(modules):,} modules; {n:,} modules to train on")
several = private.x[private.present.all(axis=1)]
for records in several[len(several) // 3 :: len(several) // 3][:2]:
    print("\none unit:", *(repr(text_of(record)) for record in records), sep="\n  ")

# %% [markdown]
# ## Adapt, with a guarantee for a module
#
# `trainable=` chooses the adapters, a small part of the parameters. The others are constants,
# without gradient, noise, or a part in the norm that is clipped. What is drawn, clipped and
# accounted is a module.

# %%
EPSILON, STEPS, BATCH = 8.0, 30, 256


def adapt(units, batch_size):
    return dpjax.fit(
        model,
        dpjax.models.next_token,
        units,
        dpjax.PrivacyBudget(EPSILON, delta=1 / (10 * units.size)),
        optax.adam(optax.cosine_decay_schedule(0.03, STEPS, 0.05)),
        key=jax.random.key(2),
        params=pretrained,
        trainable=adapts,
        batch_size=batch_size,
        steps=STEPS,
        clip_norm=0.3,
        progress=False,
    )


adapted = adapt(private, BATCH)
sizes = np.array([leaf.size for leaf in jax.tree.leaves(pretrained)])
trained = sizes @ jax.tree.leaves(adapters(pretrained))
print(f"trained: {trained:,} of {sizes.sum():,} parameters\n\n{adapted.guarantee()}")

# %% [markdown]
# `jax.random.key(2)` makes this page reproducible, and **spoils the privacy**: take
# `dpjax.random_key()` for a network that you release. The guarantee holds for all that is made of
# the adapters, such as the text below. It does not cover the learning rate and clip norm, which
# were tuned on this very text, nor what follows, which looks at held-out modules.
#
# ## What is gained, and what privacy costs
#
# Beside it, three others: the network as it came from the public text; one that is adapted to an
# eighth of the modules, for the same epsilon, in batches that are an eighth as large; and one
# adapted to all of them without privacy, which draws each module as often.

# %%
# NOT PRIVATE: adapted without noise, to compare.
units = jax.tree.map(jnp.asarray, (private.x, private.present))
exact, _ = train_without_privacy(pretrained, units, rate=0.01, steps=120, batch=64, adapt=True)
whole = f"private, {n:,} modules"
few = units_of(~held & np.isin(owners, modules[300 : 300 + n // 8]))
models = {
    "not adapted": (pretrained, GREY),
    f"private, {few.size} modules": (adapt(few, BATCH // 8).params, GREEN),
    whole: (adapted.params, BLUE),
    "not private": (exact, ORANGE),
}


# %%
# NOT PRIVATE with regard to the held-out modules.
def correct(params, sequence):  # the share of tokens that are the likeliest one
    ahead = sequence[1:]
    right = model.apply({"params": params}, sequence)[:-1].argmax(axis=1) == ahead
    return jnp.sum(right & (ahead != 0)) / jnp.maximum(jnp.sum(ahead != 0), 1)


@jax.jit
def measured(params):
    examples = jnp.asarray(held_out.x), jnp.asarray(held_out.present)
    of_each = [loss_of_unit, dpjax.objectives.Objective(correct).of_units()]
    return [jnp.mean(jax.vmap(one, (None, 0))(params, examples)) for one in of_each]


table = {name: [float(value) for value in measured(params)] for name, (params, _) in models.items()}
print(f"{held_out.size} held-out modules      loss per token   accuracy")
for name, (nats, accuracy) in table.items():
    print(f"{name:25} {nats:11.2f} {accuracy:14.1%}")
most, some, least = (table[name][0] for name in ("not adapted", whole, "not private"))
print(f"\nprivate training keeps {(most - some) / (most - least):.0%} of the gain in loss")

figure, axes = plt.subplots(figsize=(8, 2.6))
for place, (name, (nats, accuracy)) in enumerate(table.items()):
    axes.plot(nats, place, "o", color=models[name][1], markersize=10)
    axes.annotate(f"{nats:.2f}; {accuracy:.1%} right", (nats + 0.05, place), va="center")
axes.axvline(table["not adapted"][0], color=GREY, linestyle=":")
axes.set_yticks(range(len(table)), list(table))
axes.invert_yaxis()
axes.margins(y=0.2)
axes.set(
    xlim=(None, max(nats for nats, _ in table.values()) + 0.4),
    xlabel="loss per token on held-out modules (nats)",
    title=f"Private: epsilon {EPSILON:g} for a module, one run each",
)
plt.show()

# %% [markdown]
# Adapting helps with privacy, and helps more without. What privacy costs is set by the number of
# units. The noise is added once to the sum of a batch, so that with an eighth of the modules, and
# of the batch, it is eight times as large beside what they say: it drowns that. Many docstrings in
# a module do not help, as a module counts once. Here is the noise, if each batch holds an eighth of
# the units:

# %%
lines = ["  units   noise in each coordinate of the mean, as a share of the clip norm"]
for count in (250, 500, 1_000, 2_000, 20_000, 200_000):
    budget = dpjax.PrivacyBudget(EPSILON, delta=1 / (10 * count))
    sampler = dpjax.sampling.poisson(count // 8, count, budget=budget, count=STEPS)
    multiplier = dpjax.accounting.gaussian_multiplier(budget, STEPS, sampler=sampler)
    lines.append(f"{count:7,} {multiplier / (count // 8):10.5f}")
print("\n".join(lines))

# %% [markdown]
# ## What has been learned?
#
# The tokens of held-out docstrings that the private training made likelier, those first that lower
# the loss most.

# %%
# NOT PRIVATE with regard to the held-out modules.
records = held_out.x[held_out.present]


@jax.jit
def losses(params):
    """Returns the loss of each token but the first of its record."""
    logits = jax.vmap(lambda sequence: model.apply({"params": params}, sequence))(records)
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], records[:, 1:])


counted = records[:, 1:] != 0


def gain(name):
    """Returns how much each token of the vocabulary lowers the loss per token."""
    change = np.asarray(losses(pretrained) - losses(models[name][0]))
    return np.bincount(records[:, 1:][counted], change[counted], VOCABULARY) / counted.sum()


gains = {name: gain(name) for name in (whole, "not private")}
top = np.argsort(-gains[whole])[:16]
figure, axes = plt.subplots(figsize=(8, 4.6))
axes.barh(range(len(top)), gains[whole][top], color=BLUE, label=whole)
axes.plot(gains["not private"][top], range(len(top)), "D", color=ORANGE, label="not private")
axes.set_yticks(range(len(top)), [repr(pieces[token]) for token in top], family="monospace")
axes.invert_yaxis()
axes.axvline(0, color="0.4", linewidth=0.8)
axes.set(xlabel="nats per token of text", title="Which tokens became likelier?")
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
# They are marks, single letters and pieces of words. A word that Python's grammar has not, such as
# an argument's name, has no token of its own; it is spelled, and the network has learned to expect
# that.
#
# What do the networks write? Each goes on from the same words, with the same random numbers. None
# makes sense, so small are they. What the private one writes is post-processing: the guarantee
# covers it, whoever asks, and however often. What the one without privacy writes may be somebody's
# sentence.


# %%
@jax.jit
def write_on(params, prompt, length, key):
    """Draws the next token, again and again, from what the network thinks likely."""

    def draw(place, tokens):
        logits = model.apply({"params": params}, tokens)[place - 1].at[0].set(-jnp.inf)
        token = jax.random.categorical(jax.random.fold_in(key, place), logits / 0.6)
        return tokens.at[place].set(token)

    return jax.lax.fori_loop(length, len(prompt), draw, prompt)


prompt = encode(["Returns the "])[0]
for name in ("not adapted", whole, "not private"):
    written = write_on(models[name][0], prompt, (prompt != 0).sum(), jax.random.key(4))
    print(f"--- {name}\n{text_of(written)}\n")

# %% [markdown]
# For a network of your own: take one that was trained on public text, the public text's tokens, and
# a unit that is a person; declare the epsilon; try learning rate and clip norm on public text that
# resembles yours. (docs/networks.md has the details, and docs/persons.md says who is one person.)
