"""Records over several devices: the bits of one device, and a share of the records on each."""

import ast
import pathlib

import jax
import numpy as np
import pytest
from factories import SAME_PROGRAM, SAME_QUERY, mostly_ci
from several import DEVICES, on_devices, on_processes

import dpjax
from dpjax import distributed
from dpjax.distributed import shard
from dpjax.placement import shard as sharding

ROOT = pathlib.Path(__file__).parents[2]
COLLECTIVES = {"psum", "pmean", "all_gather", "shard_map", "pmap", "axis_index"}
# All records, batches, an anchor, a single pass, a network.
KINDS = ["dp-tr", "dp-str", "dp-svrg", "spider", "dp-optimizer"]
MESSAGES = {"broadcast_one_to_all", "process_allgather"}

# Without optimisation the products of its step are rounded otherwise where the program around them
# is another.
OPTIMISED = ["dp-subspace-tr"]
# Queries read the records, and nothing else does.
NAMES = sorted(dpjax.ALGORITHMS.keys() - {*SAME_PROGRAM, *SAME_QUERY})
LOSSES = [f"{loss} {kind}" for loss in ("softmax", "huber") for kind in ("dp-tr", "dp-svrg")]
DAILY = ["dp-tr", "dp-optimizer"]
TRAINED = f"""
import compiling
labels = {{"softmax": np.digitize(x[:, 0], [-0.1, 0.1]).astype(np.float32), "huber": x[:, 0]}}
losses = {{"softmax": dpjax.objectives.softmax(3), "huber": dpjax.objectives.huber()}}
settings = {{"dp-tr": {{"steps": 3}},
            "dp-svrg": {{"epochs": 1, "epoch_length": 3, "batch_size": 200}}}}

def of_scores(loss, kind):
    return dpjax.ALGORITHMS[kind](losses[loss], budget, data_size=n,
                                  dimension=losses[loss].parameters(4), **settings[kind])

for name in NAMES:
    compiling.choose("computes" if name in {OPTIMISED} else None)
    loss, _, kind = name.rpartition(" ")
    given, y = (of_scores(loss, kind), labels[loss]) if loss else (algorithm(name), signs)
    for where, place in PLACES.items():
        found[where + name] = bits(dpjax.solve(given, place((x, y)), key=jax.random.key(0)))
"""


def trained(names, **places):
    """A program that trains algorithms, ``names`` of one or of a loss and one, on records."""
    how = ", ".join(f"{where!r}: lambda data: {place}" for where, place in places.items())
    filled = TRAINED.replace("NAMES", repr(names)).replace("PLACES", f"{{{how}}}")
    return "signs = y\n" + filled


@pytest.mark.parametrize(
    ("names", "between"),
    [(DAILY, DAILY[:1]), pytest.param([*NAMES, *LOSSES], KINDS, marks=pytest.mark.ci)],
    ids=["some", "all"],
)
def test_c11_c12_c13_every_algorithm_releases_the_same_bits(names, between):
    """On one device, from memory or outside, on eight, and on four in each of two processes.

    Of parameters, history, certificate and accuracy: noise for each device would change them. One
    algorithm for each kind of query, and losses of several scores and of numbers.
    Between processes for one algorithm of each way in which records are drawn and read: the
    programs of eight devices are the same wherever the devices are.
    """
    # DP-FC keeps its records in memory.
    read = [name for name in names if name != "dp-fc"]
    found = on_devices(trained(read, disk="stream(from_disk(*data))"), count=1)
    found |= on_devices(trained(names, memory="data"), count=1)
    one = {name: found[f"memory{name}"] for name in names}
    assert len(set(one.values())) == len(names)
    assert {name: one[name] for name in read} == {name: found[f"disk{name}"] for name in read}
    found = on_devices(trained(names, eight="shard(data)"))
    assert one == {name: found[f"eight{name}"] for name in names}
    first, second = on_processes(trained(between, both="shard(data)"), devices=4)
    assert first == second == {f"both{name}": one[name] for name in between}


# Of a method that draws batches larger than a share.
SHARDINGS = """
from jax.sharding import Mesh, NamedSharding, PartitionSpec
few = x[:n - 100], y[:n - 100]  # arrays of one sharding have rows for all devices alike
given = make("dp-adam", budget, data_size=len(few[1]), dimension=4, steps=3, batch_size=9_000)
assert given.queries[0].sampler.max_batch_size > sharding.SHARE
rows = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("mine",)), PartitionSpec("mine"))
data = [few, shard(few, jax.devices()[:5]), tuple(jax.device_put(leaf, rows) for leaf in few),
        shard(dpjax.Dataset(*few), jax.devices()[:5])]
found["all"] = [bits(dpjax.solve(given, records, key=jax.random.key(0))) for records in data]
found["run"] = bits(dpjax.run(given, data[1], key=jax.random.key(0), progress=False))
wide = dpjax.objectives.Objective(lambda w, record: jnp.sum(w[:4] * record[0]))
sizes = {"data_size": len(few[1]) + 20, "dimension": 20, "clip_norm": 1.0, "step_size": 0.1}
attacked = dpjax.dp_gradient_descent(wide, budget, steps=1, **sizes)
found["canaries"] = [bits(dpjax.run(attacked, records, key=jax.random.key(0), canaries=20))
                     for records in data[:2]]
"""
# By XLA's own count, of a program that is optimised as users' are, on one device and on eight.
MEMORY = """
def program(mesh):
    data = sharding.put((x, y), mesh)
    start = sharding.replicate((jax.random.key(0), jnp.zeros(4)), data)
    solve = dpjax.driver.program._solve
    return solve.lower(algorithm("NAME"), data, *start, unit="row", bounded_rows=False).compile()


memory = []
for mesh in (None, shard((x, y)).mesh):
    compiled = program(mesh)
    used = compiled.memory_analysis()
    memory.append(used.argument_size_in_bytes + used.temp_size_in_bytes)
text = compiled.as_text()
words = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")
others = sum(text.count(word) for word in words)
found["memory"] = [*memory, len(re.findall(r" all-reduce(-start)?[(]", text)), others]
"""


@pytest.mark.parametrize("optimised", mostly_ci([False, True], daily=[False]))
def test_c12_any_number_of_devices_and_the_users_own_sharding(optimised):
    found = on_devices(SHARDINGS, optimised=optimised)
    assert len({*found["all"], found["run"]}) == len({*found["canaries"]}) == 1


@pytest.mark.parametrize("name", mostly_ci(["dp-tr", "dp-adam"], daily=["dp-adam"]))
def test_a_device_holds_its_share_and_no_program_gathers_records(name):
    """The sums of one pass cross devices by one collective, a drawn batch comes by another."""
    one, eight, reduces, others = on_devices(MEMORY.replace("NAME", name), optimised=True)["memory"]
    assert (reduces, others) == (1 + (name == "dp-adam"), 0)
    assert eight <= one / DEVICES + 2**21


@pytest.mark.parametrize("count", mostly_ci([1, 3], daily=[1]))
def test_c50_a_run_goes_on_with_another_number_of_devices(tmp_path, count):
    program = """
from factories import Crash
from dpjax.driver import progress, resume
given, folder = algorithm("dp-adam"), {folder!r}
def run(data, **more):
    return bits(dpjax.run(given, data, progress=False, checkpoint=folder, **more))
if {begins}:
    whole, resume.SAVE_SECONDS = progress._advance, 0.0
    def advance(bound, carry, until):
        if int(carry.step) == 1:
            raise Crash
        return whole(bound, carry, until)
    progress._advance = advance
    try:
        run(shard((x, y)), key=jax.random.key(0))
    except Crash:
        found["crashed"] = True
else:
    found["resumed"] = run(shard((x, y)))
"""
    whole = """
found["whole"] = bits(dpjax.run(given, (x, y), key=jax.random.key(0), progress=False))
"""
    folder = str(tmp_path / "run")
    begin, end = (program.format(folder=folder, begins=begins) for begins in (True, False))
    assert on_devices(begin) == {"crashed": True}
    found = on_devices(end + whole, count=count)
    assert found["resumed"] == found["whole"]


# What eight devices do, in one process: starting one takes longer than most of these.
FIT = """
import optax
def trained(data):
    return dpjax.fit(
        lambda w, x: jnp.tanh(x @ w["a"]) @ w["b"], "cross_entropy", data, budget, optax.adam(0.1),
        seed=0, batch_size=256, steps=4, params={"a": jnp.ones((4, 8)) / 4, "b": jnp.ones((8, 2))},
        progress=False)
data = x, (y > 0).astype(np.int32)
found["fit"] = [bits(trained(given).solution) for given in (data, shard(data))]
"""
PERSONS = """
rng = np.random.default_rng(0)
grouped = dpjax.datasets.group((x, y), rng.integers(0, 9_000, n), 5)
visits = dpjax.dp_trust_region(dpjax.objectives.logistic().of_units(), budget,
                               data_size=len(grouped[1]), dimension=4, steps=3)
found["persons"] = [bits(dpjax.solve(visits, data, seed=0)) for data in (grouped, shard(grouped))]
"""
# Of floats, integers and booleans, and of what is no number.
TAKE_AND_DRAW = """
mesh = shard((x, y)).mesh
rows = {"float": x.copy(), "int": np.arange(n, dtype=np.int32) - 7, "bool": np.arange(n) % 3 == 0,
        "half": x[:, 0].astype(jnp.bfloat16)}
rows["float"][5] = np.nan
spread = sharding.put(rows, mesh)
few = jnp.array([5, n - 1, 0, 4096, 5])
many = jax.random.randint(jax.random.key(0), (5_000,), 0, n)
mask = jnp.arange(5_000) % 2 == 0
taken = jax.jit(sharding.take)(spread, few)
again, kept = jax.jit(sharding.draw)(spread, few, few > 3)
drawn, _ = jax.jit(sharding.draw)(spread, many, mask)
same = [np.asarray(a).tobytes() == rows[k][np.asarray(few)].tobytes() for k, a in taken.items()]
same += [np.asarray(a).tobytes() == np.asarray(taken[k]).tobytes() for k, a in again.items()]
for name, leaf in drawn.rows.items():
    same.append(np.asarray(leaf)[:5_000].tobytes() == rows[name][np.asarray(many)].tobytes())
same += [np.asarray(drawn.mask)[:5_000].tolist() == mask.tolist(),
         not np.asarray(drawn.mask)[5_000:].any(), kept.tolist() == (few > 3).tolist()]
found["same"] = [bool(one) for one in same]
"""
OWN_QUERY = """
import dataclasses
from dpjax._typing import pytree_dataclass
from dpjax.oracles import GradientQuery

@pytree_dataclass
class Mine(GradientQuery):
    pass

given = algorithm("dp-gd")
query = Mine(**{f.name: getattr(given.query, f.name) for f in dataclasses.fields(given.query)})
try:
    dpjax.solve(dataclasses.replace(given, query=query), shard((x, y)), key=jax.random.key(0))
except ValueError as error:
    found["own"] = str(error)
"""
# Planted: the third device has the rows of the second.
READ_TWICE = """
right = sharding.put
def wrong(examples, mesh):
    if mesh is not None:
        share = sharding._share(n, mesh)
        examples = tuple(leaf.copy() for leaf in examples)
        for leaf in examples:
            leaf[2 * share : 3 * share] = leaf[share : 2 * share]
    return right(examples, mesh)
prepare.put = wrong
found["twice"] = [bits(dpjax.solve(algorithm("dp-gd"), data, key=jax.random.key(0)))
                  for data in ((x, y), shard((x, y)))]
prepare.put = right
"""
# Planted: one device of eight adds 1 to what it sends.
WRONG_SUMS = """
right = jax.lax.psum
def wrong(values, axis):
    return right(values + (jax.lax.axis_index(axis) == 5).astype(values.dtype), axis)
sharding.lax.psum = wrong
for how in (dpjax.solve, dpjax.run):
    try:
        how(algorithm("dp-gd"), shard((x, y)), key=jax.random.key(0))
    except RuntimeError as error:
        found["wrong " + how.__name__] = str(error)
"""


def test_c12_c13_eight_devices_release_what_one_does_and_mistakes_are_seen():
    found = on_devices(FIT + PERSONS + TAKE_AND_DRAW + OWN_QUERY + READ_TWICE + WRONG_SUMS)
    for name in ("fit", "persons"):
        one, eight = found[name]
        assert one == eight, name
    assert len(found["same"]) == 15 and all(found["same"])
    assert "Mine does not state sums" in found["own"]
    one, eight = found["twice"]
    assert one != eight
    for name in ("wrong solve", "wrong run"):
        assert "8 devices do not add up integers as one does" in found[name]


def test_c11_one_file_adds_up_over_devices_and_one_sends_messages():
    used = {
        (path.name, name in MESSAGES)
        for path in (ROOT / "dpjax").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and (name := node.attr if isinstance(node, ast.Attribute) else node.id)
        in COLLECTIVES | MESSAGES
    }
    assert used == {("shard.py", False), ("processes.py", True)}


def test_few_records_stay_on_one_device():
    data = shard((np.ones((5, 2)), np.ones(5)))
    examples, mesh = distributed.mesh_of(data)
    assert isinstance(sharding.put(examples, mesh)[0], np.ndarray)


def test_no_device_is_an_error():
    with pytest.raises(ValueError, match="devices is empty"):
        shard((np.ones((5, 2)), np.ones(5)), [])


def test_records_on_one_device_are_read_as_ever():
    assert distributed.mesh_of((jax.numpy.ones((3, 2)),))[1] is None
