"""Whether every algorithm releases the same bits wherever its records lie.

Run ``python benchmarks/same_bits.py [NAME ...] [--places ...]``. Each place is a fresh process, or
two: 1, 2, 4 and 8 virtual devices of one CPU, two processes with 1 and with 4 devices, and records
that are streamed, from memory and from files whose rows a function maps. What is compared are the
bits of parameters, history, certificate and accuracy: of every algorithm and baseline on made
records, more than 4,096 for each of seven devices, and of ``fit`` with the convolutional network of
MNIST, 50 steps of 256 images and 10 of 5,000. The status is 1 where a bit differs.
"""

import argparse
import functools
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARE, FEATURES = 4096, 4
ROWS = 7 * SHARE + 100  # something on each of eight devices, and padding on the last
BATCH = 9_000  # more than a share: each device computes with a part of it
# Batch and steps of ``fit``: a batch that every device computes, and one that is spread.
FITS = {"fit": (256, 50), "fit-spread": (5_000, 10)}
PLACES = {  # processes, devices in each, from where records are streamed
    "1 device": (1, 1, None),
    "2 devices": (1, 2, None),
    "4 devices": (1, 4, None),
    "8 devices": (1, 8, None),
    "2 processes": (2, 1, None),
    "2 processes x 4": (2, 4, None),
    "streamed": (1, 1, "memory"),
    "from disk": (1, 1, "disk"),
}


def trained(name, place):
    """The solution of one training, its records placed by ``place``."""
    import jax
    import numpy as np
    import optax

    import dpjax

    budget = dpjax.PrivacyBudget(1.0, 1e-6)
    if name in FITS:
        batch_size, steps = FITS[name]
        return dpjax.fit(
            dpjax.models.CNN(),
            "cross_entropy",
            place(dpjax.datasets.load("mnist")),
            budget,
            optax.sgd(0.1),
            clip_norm=1.0,
            batch_size=batch_size,
            steps=steps,
            seed=0,
            progress=False,
        ).solution
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32) / 4
    y = np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)
    entry = dpjax.algorithms.ALL[name]
    more = {"data_size": ROWS, "dimension": FEATURES, "steps": 3} | entry.example.required
    if name in ("dp-adam", "dp-sgd", "dp-optimizer", "dpagem"):
        more["batch_size"] = BATCH
    objective = dpjax.objectives.OBJECTIVES[entry.example.objective]()
    algorithm = entry.factory(objective, budget, **more)
    return dpjax.solve(algorithm, place((x, y)), key=jax.random.key(0))


def bits(solution):
    """A hash of all numbers that a training releases."""
    import jax
    import numpy as np

    kept = solution.params, solution.history, solution.certificate, solution.accuracy
    words = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kept))
    return hashlib.sha256(words).hexdigest()


def on_disk(data, folder):
    """The records in files of a folder, as those of a table whose rows are scaled."""
    import dataclasses

    import numpy as np

    from dpjax import Dataset, distributed
    from dpjax.datasets.rows import Rows

    x, y = map(np.asarray, data.examples if isinstance(data, Dataset) else data)
    shape, path = x.shape[1:], folder / "table.npy"
    np.save(path, np.column_stack([x.reshape(len(x), -1), y]).astype(np.float32))
    table = np.load(path, mmap_mode="r")
    x = Rows(table, lambda rows: rows[:, :-1].reshape(-1, *shape), shape)
    y = Rows(table, lambda rows: rows[:, -1], (), y.dtype)
    return distributed.stream(
        dataclasses.replace(data, x=x, y=y) if isinstance(data, Dataset) else (x, y)
    )


def here(names, devices, streamed):
    """Prints the hash of each training, in this process."""
    from dpjax import distributed

    place = distributed.shard if devices > 1 else lambda data: data
    with tempfile.TemporaryDirectory() as folder:
        if streamed is not None:
            from_disk = functools.partial(on_disk, folder=Path(folder))
            place = from_disk if streamed == "disk" else distributed.stream
        for name in names:
            print(json.dumps([name, bits(trained(name, place))]), flush=True)


def begun(names, place, rank=0, port=0):
    _, devices, _ = PLACES[place]
    words = ["--in", place, "--rank", str(rank), "--port", str(port)]
    return subprocess.Popen(
        [sys.executable, __file__, *words, *names],
        env={**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def found(names, place):
    """The hash of each training in a place; of two processes they have to be the same."""
    processes, _, _ = PLACES[place]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    all_ = [begun(names, place, rank, port) for rank in range(processes)]
    printed = [process.communicate()[0] for process in all_]
    if any(process.returncode for process in all_):
        raise SystemExit(f"a training in {place} ended with an error")
    # The library between processes prints lines of its own.
    lines = [[line for line in text.splitlines() if line.startswith('["')] for text in printed]
    each = [dict(map(json.loads, own)) for own in lines]
    return {
        name: value if all(one[name] == value for one in each) else "differ"
        for name, value in each[0].items()
    }


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("names", nargs="*", help=f"algorithms, {', '.join(FITS)}; all by default")
    words.add_argument("--in", dest="place", help=argparse.SUPPRESS)
    words.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    words.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    words.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    arguments = words.parse_args()
    if arguments.place:
        processes, devices, streamed = PLACES[arguments.place]
        if processes > 1:
            from dpjax import distributed

            distributed.initialize(f"127.0.0.1:{arguments.port}", processes, arguments.rank)
        here(arguments.names, devices * processes, streamed)
        return
    import dpjax

    every = [name for name, entry in dpjax.algorithms.ALL.items() if not entry.one_release]
    names = arguments.names or [*every, *FITS]
    width = max(map(len, names))
    one = None
    same = True
    for place in dict.fromkeys(["1 device", *arguments.places]):
        begin = time.perf_counter()
        now = found(names, place)
        one = one or now
        differing = [name for name in names if now[name] != one[name]]
        same &= not differing
        words = f"{len(names) - len(differing)} of {len(names)} trainings as on 1 device"
        print(
            f"{place:16} {words}  {time.perf_counter() - begin:6.0f} s  {', '.join(differing)}",
            flush=True,
        )
    assert one is not None
    print()
    for name in names:
        print(f"{name:{width}}  {one[name][:16]}")
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
