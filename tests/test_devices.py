"""More devices than one: noise is drawn once, of the logical shape, wherever the records lie."""

import ast
import json
import os
import pathlib
import subprocess
import sys

import pytest

import dpjax

ROOT = pathlib.Path(__file__).parent.parent
COLLECTIVES = {"psum", "pmean", "all_gather", "shard_map", "pmap", "axis_index", "process_index"}

# Prints, as JSON, what trainings on null records (noise alone) and on real ones publish where the
# records lie on one of four devices, and where each device has a quarter of them.
PROGRAM = """
import json
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from factories import make, noisy_norms

import compiling
import dpjax

compiling.install()
assert jax.device_count() == 4
x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32) / 4
y = np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)
rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
found = {}
for name in dpjax.ALGORITHMS:
    algorithm = make(name, data_size=64, dimension=4, steps=3)
    for label, records in (("null", 0 * x), ("real", x)):
        found[f"{name} {label}"] = []
        for where in (jax.devices()[0], rows):
            data = jax.device_put((records, y), where)
            solution = dpjax.solve(algorithm, data, key=jax.random.key(0))
            found[f"{name} {label}"].append(
                [*solution.params.tolist(), *noisy_norms(solution)[:3].tolist()])
print(json.dumps(found))
"""


def test_c11_c12_c13_noise_is_the_same_on_one_and_on_four_devices():
    """Noise per device would be summed or repeated: another length, or equal entries."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    flags = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 2 * len(dpjax.ALGORITHMS)
    for name, (one, four) in found.items():
        tolerance = {"rel": 0, "abs": 0} if name.endswith("null") else {"rel": 1e-3, "abs": 1e-5}
        if name in ("dp-tr null", "dp-str null", "dp-subspace-tr null", "spider null"):
            # The same noise; the step of p entries made of it is fused otherwise in its last digit.
            tolerance = {"rel": 1e-6, "abs": 0}
            assert four[4] == one[4]  # the first answer is noise alone, to the last bit
        assert four == pytest.approx(one, **tolerance), name
        assert len(set(one)) == len(one)


def test_c11_no_file_adds_up_over_devices():
    """A sum over devices is XLA's alone; whoever writes one must say where noise is drawn."""
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for path in (ROOT / "dpjax").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    assert not used & COLLECTIVES
