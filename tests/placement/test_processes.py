"""Several processes of one training: agreement before anything is spent, and an end for all."""

import itertools
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from several import ROOT, environment, free_port, on_processes

import dpjax
from dpjax import distributed
from dpjax.cli.main import main
from dpjax.driver import fingerprint
from dpjax.placement import processes, shard
from dpjax.placement.processes import ALONE, Team

KEY = jax.random.key(0)
N = 3 * shard.SHARE + 7


def test_one_process_asks_nobody():
    assert ALONE.leads and ALONE.from_first(lambda: 3) == 3 and ALONE.gather(b"x") == [b"x"]
    ALONE.agree({"key": "mine"})
    with pytest.raises(ZeroDivisionError):
        ALONE.from_first(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="mine"), processes.reaching_others(ALONE):
        raise RuntimeError("mine")


def test_a_mistake_of_ones_own_is_not_taken_for_a_lost_process():
    with pytest.raises(ValueError, match="mine"), processes.reaching_others(Team(2)):
        raise ValueError("mine")
    lost = pytest.raises(processes.ProcessLost, match="ended or cannot be reached")
    with lost, processes.reaching_others(Team(2)):
        raise ValueError("UNKNOWN: the other side closed the connection")


@pytest.mark.parametrize("cuts", [[0, N], [0, 4096, N], [0, 4096, 8192, N]])
def test_the_hash_of_the_data_is_that_of_its_shares(cuts):
    records = np.arange(2.0 * N).reshape(N, 2), np.arange(N) % 2
    ranges = [range(*pair) for pair in itertools.pairwise(cuts)]
    parts = [fingerprint.part(records, KEY, [rows]) for rows in ranges]
    assert fingerprint.joined(parts) == fingerprint.content(records, KEY)
    changed = records[0].copy(), records[1]
    changed[0][5000, 1] += 1
    assert fingerprint.content(changed, KEY) != fingerprint.content(records, KEY)
    swapped = np.concatenate([records[0][4096:8192], records[0][:4096], records[0][8192:]])
    assert fingerprint.content((swapped, records[1]), KEY) != fingerprint.content(records, KEY)


def test_c14_process_0_has_the_key_the_ledger_and_the_checkpoint_and_all_agree_first(tmp_path):
    """Keys that differ are refused if they are of seeds; of random ones process 0's is taken."""
    program = f"""
import os
os.environ["DPJAX_SECRET"] = "shared by both processes"  # what they tell one another is sealed
from dpjax.driver import fingerprint
from dpjax.distributed import leads
folder = {str(tmp_path)!r}
if leads():
    dpjax.Ledger.create(folder + "/ledger", dpjax.PrivacyBudget(2.5, 1e-5))
places = dict(checkpoint=folder + "/run", ledger=folder + "/ledger", label="visits", progress=False)
data, rank = shard((x, y)), jax.process_index()

def refused(**more):
    try:
        dpjax.run(algorithm("dp-gd"), data, **(places | more))
    except ValueError as error:
        return str(error)

found["key"] = refused(seed=rank)
found["start"] = refused(seed=0, params=jnp.full(4, float(rank)))
found["data"] = refused(seed=0, checkpoint=None) if rank < 0 else None
environment = fingerprint.environment
fingerprint.environment = lambda: environment() | {{"jax": f"0.{{rank}}"}}
found["versions"] = refused(seed=0)
fingerprint.environment = environment
found["untouched"] = not os.path.exists(folder + "/run")
found["secret"] = refused(seed=0, label=None)
first = dpjax.run(algorithm("dp-gd"), data, key=dpjax.random_key(), **places)
again = dpjax.run(algorithm("dp-gd"), data, **places)
found["bits"] = [bits(first), bits(again), first.releasable]
found["budget"] = refused(seed=0, checkpoint=None)
"""
    first, second = on_processes(program)
    assert first == second
    assert "differ in key: each has" in first["key"]
    assert "differ in starting point: each has" in first["start"]
    assert "differ in jax: each has" in first["versions"]
    assert first["untouched"] and "label is required" in first["secret"]
    assert first["bits"][0] == first["bits"][1] and first["bits"][2]
    ledger = dpjax.Ledger.read(tmp_path / "ledger")
    assert len(ledger.entries) == 2  # two fit into the budget: the run, and one without checkpoint


@pytest.mark.ci
def test_c14_without_a_place_process_0_has_the_key_too():
    program = """
import os
os.environ["DPJAX_SECRET"] = "shared by both processes"
found["solve"] = bits(dpjax.solve(algorithm("dp-gd"), shard((x, y)), key=dpjax.random_key()))
found["few"] = bits(dpjax.run(
    make("dp-gd", budget, data_size=100, dimension=4, steps=2), shard((x[:100], y[:100])),
    key=dpjax.random_key(), progress=False))
"""
    first, second = on_processes(program)
    assert first == second


@pytest.mark.ci
@pytest.mark.parametrize("victim", [0, 1])
def test_c14_a_killed_process_ends_the_other_and_the_same_commands_go_on(tmp_path, victim):
    places = ["--checkpoint", str(tmp_path / "run"), "--ledger", str(tmp_path / "ledger")]
    training = ["run", "dp-gd", "--steps", "500", "--seed", "7", "--save"]
    created = ["ledger", "create", str(tmp_path / "ledger"), "--epsilon", "2", "--delta", "1e-5"]
    assert main(created) == 0 and main([*training, str(tmp_path / "alone")]) == 0

    command = [sys.executable, "-m", "dpjax", *training, str(tmp_path / "model"), *places]
    command += ["--processes", "2"]

    def both():
        port = free_port()
        return [
            subprocess.Popen(
                [*command, "--coordinator", f"127.0.0.1:{port}", "--process", rank],
                env=environment(1),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in "01"
        ]

    processes = both()
    while not (tmp_path / "run" / "state").exists():
        assert processes[victim].poll() is None, processes[victim].communicate()
        time.sleep(0.1)
    processes[victim].send_signal(signal.SIGKILL)
    _, errors = processes[1 - victim].communicate(timeout=60)
    # JAX aborts it, or it notices first.
    said = "another process of this run ended" in errors
    assert processes[1 - victim].returncode == (1 if said else -signal.SIGABRT), errors
    processes[victim].communicate()
    resumed = both()
    ends = [process.communicate(timeout=120) for process in resumed]
    assert [process.returncode for process in resumed] == [0, 0], ends
    assert "differentially private" in ends[0][0] and ends[1][0] == ""
    kept, alone = (dpjax.load(tmp_path / name) for name in ("model", "alone"))
    assert np.array_equal(kept.params, alone.params)
    assert len(dpjax.Ledger.read(tmp_path / "ledger").entries) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--coordinator", "127.0.0.1:1"], "go together; give all three"),
        (["--process", "0", "--processes", "2"], "go together; give all three"),
        (
            ["--coordinator", "127.0.0.1:1", "--processes", "2", "--process", "2"],
            "--process must be from 0 to 1, got 2",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(words, message, capsys):
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.ci
def test_what_is_not_joined_ends_in_time():
    """Without a cluster, and where no process 0 answers, so that JAX aborts."""
    alone = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process", "1"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "dpjax", "run", *words],
            env=environment(1),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in (["--distributed"], [*alone, "--start-timeout", "0.5"])
    ]
    ends = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [2, -signal.SIGABRT], ends
    assert [out for out, _ in ends] == ["", ""]
    assert ends[0][1].splitlines()[-1].startswith("dpjax: several processes cannot be joined")
    assert "DEADLINE_EXCEEDED" in ends[1][1]


@pytest.mark.parametrize("address", ["node0", ":1234", "node0:", "node0:0", "node0:65536", "n:1a"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="coordinator must be HOST:PORT"):
        distributed.initialize(address, 2, 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"timeout": 0.0}, "timeout must be a finite number above 0"),
        ({"timeout": 1e9}, r"timeout must be at most 1e\+06 seconds"),
        ({"processes": 0}, "processes must be at least 1"),
        ({"process": 2}, "process must be from 0 to 1, got 2"),
        ({"process": "1"}, "process must be from 0 to 1, got '1'"),
    ],
)
def test_what_initialize_cannot_mean_is_refused_before_it_waits(more, message):
    with pytest.raises(ValueError, match=message):
        distributed.initialize(**{"coordinator": "h:1", "processes": 2, "process": 0} | more)
