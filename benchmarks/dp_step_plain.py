"""Gradient steps that are NOT PRIVATE: attempts to be fastest, for ``benchmarks/dp_step.py``.

The same functions as ``dpjax.models``, of a whole batch. On a CPU the fastest keeps the batch in
the last axis, where every element-wise operation vectorises; turns each convolution into one matrix
product over shifted slices; and goes through the batch in chunks that stay in the cache.
"""

import jax
import jax.numpy as jnp
from jax import lax

FIRST = ("NHWC", "HWIO", "NHWC")


def cross_entropy(logits, labels):
    """Mean over the batch; logits (n, classes)."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)


class BatchFirst:
    """Layers on arrays (records, height, width, channels), with the library's convolution."""

    channels, space = -1, (1, 2)

    def enter(self, images):
        return images.reshape(*images.shape[:3], -1)

    def convolve(self, x, kernel, stride, low):
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), [(low, low)] * 2, dimension_numbers=FIRST
        )

    def normalise(self, x, layer, groups):
        n, height, width, channels = x.shape
        rows = x.reshape(n, height * width, groups, channels // groups)
        rows = _standard(rows, (1, 3)).reshape(x.shape)
        return rows * layer["scale"] + layer["bias"]

    def bias(self, x, bias):
        return x + bias

    def widen(self, x, channels):
        return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, channels - x.shape[-1])))

    def flat(self, x):
        return x.reshape(len(x), -1)

    def dense(self, x, layer):
        return x @ layer["kernel"] + layer["bias"]

    def leave(self, logits):
        return logits


class Products(BatchFirst):
    """The same layout, where a convolution is one product with shifted slices."""

    def convolve(self, x, kernel, stride, low):
        n, height, _, _ = x.shape
        size, _, inputs, outputs = kernel.shape
        side, taps, rows = _plan(height, size, stride, low)
        more = (low, rows - height - low, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), more, more, (0, 0, 0)])
        x = x.reshape(n, rows // stride, stride, rows // stride, stride, inputs)
        parts, weights = [], []
        for i, p in taps:
            for j, q in taps:
                part = x[:, i : i + side, :p, j : j + side, :q].transpose(0, 1, 3, 2, 4, 5)
                parts.append(part.reshape(n, side, side, -1))
                weights.append(_tap(kernel, stride, (i, p), (j, q)).reshape(-1, outputs))
        patches = jnp.concatenate(parts, axis=-1)
        product = patches.reshape(n * side**2, -1) @ jnp.concatenate(weights)
        return product.reshape(n, side, side, outputs)


class BatchLast:
    """Layers on arrays (channels, height, width, records), convolutions as products."""

    channels, space = 0, (1, 2)

    def enter(self, images):
        images = images.reshape(*images.shape[:3], -1)
        return images.transpose(3, 1, 2, 0)

    def convolve(self, x, kernel, stride, low):
        inputs, height, _, n = x.shape
        size, outputs = kernel.shape[0], kernel.shape[-1]
        side, taps, rows = _plan(height, size, stride, low)
        more = (low, rows - height - low, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), more, more, (0, 0, 0)])
        x = x.reshape(inputs, rows // stride, stride, rows // stride, stride, n)
        x = x.transpose(2, 4, 0, 1, 3, 5)  # stride 2 makes four small images of one
        parts, weights = [], []
        for i, p in taps:
            for j, q in taps:
                part = x[:p, :q, :, i : i + side, j : j + side]
                parts.append(part.reshape(-1, side, side, n))
                weights.append(_tap(kernel, stride, (i, p), (j, q)).reshape(-1, outputs))
        patches = jnp.concatenate(parts).reshape(-1, side * side * n)
        return (jnp.concatenate(weights).T @ patches).reshape(outputs, side, side, n)

    def normalise(self, x, layer, groups):
        rows = _standard(x.reshape(groups, -1, x.shape[-1]), (1,)).reshape(x.shape)
        return self.bias(rows * layer["scale"][:, None, None, None], layer["bias"])

    def bias(self, x, bias):
        return x + bias[:, None, None, None]

    def widen(self, x, channels):
        return jnp.pad(x, ((0, channels - len(x)), (0, 0), (0, 0), (0, 0)))

    def flat(self, x):
        return x.transpose(1, 2, 0, 3).reshape(-1, x.shape[-1])

    def dense(self, x, layer):
        return layer["kernel"].T @ x + layer["bias"][:, None]

    def leave(self, logits):
        return logits.T


def _plan(height, size, stride, low):
    """Side of the output, pairs (offset, taps there) in the images of a stride, rows to have."""
    side = (height + 2 * low - size) // stride + 1
    steps = -(-size // stride)
    taps = [(i, min(stride, size - stride * i)) for i in range(steps)]
    return side, taps, stride * (side + steps - 1)


def _tap(kernel, stride, vertical, horizontal):
    (i, p), (j, q) = vertical, horizontal
    return kernel[stride * i : stride * i + p, stride * j : stride * j + q]


def _standard(x, axes):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt((x * x).mean(axes, keepdims=True) - mean**2 + 1e-6)


def _pool(x, layers):
    for axis in layers.space:
        after = lax.slice_in_dim(x, 1, None, axis=axis)
        x = jnp.maximum(after, lax.slice_in_dim(x, 0, -1, axis=axis))
    return x


def cnn(params, images, layers):
    """Logits (n, 10) of ``dpjax.models.CNN``; tanh after the pools is the same function."""
    own = params["params"]
    x = layers.enter(images)
    for name, low in (("Conv_0", 3), ("Conv_1", 0)):
        x = layers.bias(layers.convolve(x, own[name]["kernel"], 2, low), own[name]["bias"])
        x = jnp.tanh(_pool(x, layers))
    x = jnp.tanh(layers.dense(layers.flat(x), own["Dense_0"]))
    return layers.leave(layers.dense(x, own["Dense_1"]))


def resnet20(params, images, layers):
    """Logits (n, 10) of ``dpjax.models.ResNet20``."""

    def unit(x, own, index, stride=1):
        x = layers.convolve(x, own[f"Conv_{index}"]["kernel"], stride, 1)
        return layers.normalise(x, own[f"GroupNorm_{index}"], 8)

    own = params["params"]
    x = jax.nn.elu(unit(layers.enter(images), own, 0))
    for i in range(9):
        block = own[f"_Block_{i}"]
        stride = 2 if i in (3, 6) else 1
        y = unit(jax.nn.elu(unit(x, block, 0, stride)), block, 1)
        kept = x[:, ::stride, ::stride]
        x = jax.nn.elu(y + layers.widen(kept, y.shape[layers.channels]))
    return layers.leave(layers.dense(x.mean(layers.space), own["Dense_0"]))


def whole(logits):
    """The gradient of the mean loss of a batch at once."""
    return jax.grad(lambda params, x, y: cross_entropy(logits(params, x), y))


def chunked(logits, rows):
    """The same, ``rows`` records at a time."""
    gradient = whole(logits)

    def step(params, x, y):
        count = len(x) // rows

        def add(total, records):
            return jax.tree.map(jnp.add, total, gradient(params, *records)), None

        parts = x.reshape(count, rows, *x.shape[1:]), y.reshape(count, rows)
        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        return jax.tree.map(lambda leaf: leaf / count, total)

    return step


def unrolled(logits, rows):
    """The same without a loop, in which a CPU has no fast program for a convolution."""
    gradient = whole(logits)

    def step(params, x, y):
        starts = range(0, len(x), rows)
        parts = [gradient(params, x[i : i + rows], y[i : i + rows]) for i in starts]
        return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *parts)

    return step


def contenders(name, model, batch):
    """Returns ``{what it is: step(params, x, y)}`` of all that fit the batch."""
    network = {"cnn": cnn, "resnet20": resnet20}[name]

    def each(params, x):
        return jax.vmap(model.apply, (None, 0))(params, x)

    def written(layers):
        return lambda params, x: network(params, x, layers)

    steps = {
        "as it is, vmapped": whole(each),
        "batch first, convolutions": whole(written(BatchFirst())),
        "batch first, products": whole(written(Products())),
        "batch last, products": whole(written(BatchLast())),
    }
    for rows in (16, 32, 64, 128, 256):
        if rows >= batch or batch % rows:
            continue
        if name == "cnn" and rows >= 64:  # a deep network unrolled takes minutes to compile
            steps[f"as it is, vmapped, {rows} unrolled"] = unrolled(each, rows)
        steps[f"batch first, products, {rows} at a time"] = chunked(written(Products()), rows)
        steps[f"batch last, products, {rows} at a time"] = chunked(written(BatchLast()), rows)
    return steps
