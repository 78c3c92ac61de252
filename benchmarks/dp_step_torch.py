"""PyTorch's side of ``dp_step.py`` and ``transformer.py``: a gradient step when its parent asks.

Run by those commands, with an interpreter that has PyTorch and Opacus. It prints the names of its
contenders, its device and its versions as one line of JSON, then answers every name it reads with
the seconds of one step, and ``memory`` with its peak memory in bytes.
"""

import importlib.metadata
import itertools
import json
import resource
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

# Opacus warns of hooks on inputs that need no gradient, which ours do not.
warnings.simplefilter("ignore")

CLIP_NORM, NOISE = 1.0, 1.0


class CNN(nn.Sequential):
    """The network of ``dpjax.models.CNN``."""

    def __init__(self):
        super().__init__(
            *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
        )


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x):
        y = self.second_norm(self.second(F.elu(self.first_norm(self.first(x)))))
        kept = x[:, :, :: self.stride, :: self.stride]
        return F.elu(y + F.pad(kept, (0, 0, 0, 0, 0, self.added)))


class ResNet20(nn.Sequential):
    """The network of ``dpjax.models.ResNet20``."""

    def __init__(self):
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        pairs = itertools.pairwise(widths)
        super().__init__(
            *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16), nn.ELU()),
            *(Block(inputs, outputs, outputs // inputs) for inputs, outputs in pairs),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
        )


class Layer(nn.Module):
    """Attention, then two dense layers, both beside a shortcut."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, 1e-6) for _ in range(2))
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.attend(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            rotated(parts[0]), rotated(parts[1]), parts[2], is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


def rotated(x):
    """Pairs of entries (..., length, k) turned by an angle of their position."""
    length, k = x.shape[-2:]
    frequency = 10_000.0 ** (-torch.arange(0, k, 2, device=x.device) / k)
    angle = torch.outer(torch.arange(length, device=x.device), frequency)
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Transformer(nn.Module):
    """The network of ``dpjax.models.Transformer``, whose embedding is also its last layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=WIDTH**-0.5)
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.norm, self.last = nn.RMSNorm(WIDTH, 1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.last.weight = self.embed.weight

    def forward(self, tokens):
        return self.last(self.norm(self.layers(self.embed(tokens) * WIDTH**0.5)))[:, :-1]


VOCABULARY, WIDTH, DEPTH, HEADS, LENGTH = 4096, 128, 4, 4, 128  # benchmarks/transformer.py's
MODELS = {
    "cnn": (CNN, (1, 28, 28)),
    "resnet20": (ResNet20, (3, 32, 32)),
    "transformer": (Transformer, (LENGTH,)),
}


def mean_loss(model, x, y):
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def plain(model, x, y):
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(mean_loss(model, x, y), parameters)


def channels_last(model, x, y):
    as_last = torch.channels_last
    return plain(model.to(memory_format=as_last), x.contiguous(memory_format=as_last), y)


def hooks(model, x, y):
    model = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )

    def step():
        optimizer.zero_grad(set_to_none=True)
        mean_loss(model, x, y).backward()
        optimizer.step()

    return step


def ghost(model, x, y):
    if isinstance(model, Transformer):
        # Its norms of tied weights lack the products of both uses: here they are two parameters.
        model.last.weight = nn.Parameter(model.embed.weight.detach().clone())
    model = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )
    criterion = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())

    def step():
        optimizer.zero_grad(set_to_none=True)
        outputs = model(x)
        tokens = None if outputs.ndim == 2 else outputs.shape
        criterion(outputs.flatten(0, -2), y.flatten(), shape=tokens).backward()
        optimizer.step()

    return step


def functional(model, x, y):
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights, x, y):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step():
        rows = gradients(weights, x, y)
        norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows.values()]).norm(dim=0)
        factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)
        noisy = {}
        for name, row in rows.items():
            total = torch.einsum("n,n...->...", factors, row)
            noisy[name] = (total + NOISE * CLIP_NORM * torch.randn_like(total)) / len(x)
        return noisy

    return step


STEPS = {
    "PyTorch, not private": plain,
    "PyTorch, not private, channels last": channels_last,
    "Opacus, hooks": hooks,
    "Opacus, ghost clipping": ghost,
    "torch.func, vmap and clip": functional,
}
OF_ANY = plain, hooks, ghost


def peak(device):
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(name, batch, threads):
    if int(threads):
        torch.set_num_threads(int(threads))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make, shape = MODELS[name]
    torch.manual_seed(0)
    x = torch.rand(int(batch), *shape, device=device)
    y = torch.randint(10, (int(batch),), device=device)
    if name == "transformer":
        x = torch.randint(1, VOCABULARY, x.shape, device=device)
        y = x[:, 1:].contiguous()
    # Each step's model is its own: Opacus leaves hooks on what it has seen.
    steps = {}
    versions = {name: importlib.metadata.version(name) for name in ("torch", "opacus")}
    # The others are of images.
    names = [name for name in STEPS if make is not Transformer or STEPS[name] in OF_ANY]
    hello = {"names": names, "device": device, "versions": versions}
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        asked = line.strip()
        if asked == "memory":
            print(json.dumps(peak(device)), flush=True)
            continue
        if asked not in steps:
            steps[asked] = STEPS[asked](make().to(device), x, y)
        begin = time.perf_counter()
        steps[asked]()
        if device == "cuda":
            torch.cuda.synchronize()
        print(json.dumps(time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
