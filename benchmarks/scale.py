"""What a pass over records costs on more devices, in more processes, and from outside of memory.

Run ``python benchmarks/scale.py [--quick] [--json FILE] [--folder FOLDER]``. DP-TR on made records
with 54 features, logistic loss. Devices are virtual ones of one CPU: they show memory and the cost
of the collective, not speed, since they share its cores. Each row is a fresh process; times are the
least of three runs (one above 10^6 records) after one that compiles, a step being one pass. Memory
is XLA's own count (arguments and temporaries of one device), and the most that the process held
resident.

With ``--folder`` it compares ``dpjax run`` over a file of 2 x 10^7 unscaled rows (4.4 GB, made
there and deleted) read into memory, over the rows that ``dpjax data --write`` scaled left on disk,
and, with ``--unscaled``, over the file itself left there, by turns, twice, and nothing else. What
is read, scaled and compiled once counts too, other than in the rows above, but for compiling.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

FEATURES, STEPS, RUNS = 54, 4, 3
FILE_ROWS, FILE_STEPS, LIMIT = 2 * 10**7, 32, "100MB"
COVERTYPE = 581_012
PEOPLE, GPUS = 10**10, 64


class Made:
    """Rows that are made when they are asked for: a block of random ones, again and again."""

    block = 2**15

    def __init__(self, rows, labels=False):
        import numpy as np

        x = np.random.default_rng(0).normal(size=(self.block, FEATURES)).astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        self.held = np.where(x[:, 0] > 0, 1, -1).astype(np.float32) if labels else x
        self.shape, self.dtype = (rows, *self.held.shape[1:]), self.held.dtype

    def __getitem__(self, index):
        import numpy as np

        if isinstance(index, slice):
            index = np.arange(*index.indices(self.shape[0]))
        return self.held[index % self.block]


def measured(how, rows, coordinator=None, rank=0):
    """Figures of one kind of run, in this process."""
    import jax
    import numpy as np

    import dpjax
    from dpjax import distributed
    from dpjax.driver import loop
    from dpjax.placement import shard

    if coordinator:
        distributed.initialize(coordinator, 2, rank)
    steps, runs = (STEPS, RUNS) if rows <= 10**6 else (STEPS if rows <= 10**7 else 1, 1)
    data = Made(rows), Made(rows, labels=True)
    if how == "streamed":
        data = distributed.stream(data)
    else:
        data = tuple(leaf[:] for leaf in data)
        data = data if how == "resident" else distributed.shard(data)
    algorithm = dpjax.dp_trust_region(
        dpjax.objectives.logistic(),
        dpjax.PrivacyBudget(1.0, 1e-12),
        data_size=rows,
        dimension=FEATURES,
        steps=steps,
    )
    found = {"how": how, "devices": len(jax.devices()), "rows": rows}
    if how != "streamed":
        examples, mesh = distributed.mesh_of(data)
        records = shard.place(examples, mesh)
        start = shard.replicate((jax.random.key(0), np.zeros(FEATURES, np.float32)), records)
        lowered = loop._solve.lower(algorithm, records, *start, unit="row", bounded_rows=False)
        used = lowered.compile().memory_analysis()
        found["megabytes_per_device"] = (
            used.argument_size_in_bytes + used.temp_size_in_bytes
        ) / 1e6
        if mesh is not None:
            found["collective_ms"] = collective(records)
        del records
    peak = Peak()
    seconds = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        solution = dpjax.solve(algorithm, data, seed=0)
        np.asarray(solution.params)
        seconds.append(time.perf_counter() - begin)
    found["seconds_per_pass"] = min(seconds[1:]) / steps
    found["resident_gigabytes"] = peak.bytes / 1e9
    return found


def collective(records):
    """Milliseconds of one sum over devices of as many integers as a pass has."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from dpjax.placement import shard

    numbers = 2 * FEATURES * (FEATURES + 1)

    def sums(cut, _):
        with jax.enable_x64(True):
            # Of a constant a compiler knows the sum.
            held = jax.lax.convert_element_type(cut.ravel()[0], jnp.int64)
            return shard.add_up([jnp.full(numbers, 1, jnp.int64) + held])[0]

    with jax.enable_x64(True):
        run = jax.jit(records._mapped(sums, jax.sharding.PartitionSpec()))
        leaf = jax.tree.leaves(records.rows)[0]
        np.asarray(run(leaf, ()))
        begin = time.perf_counter()
        for _ in range(20):
            np.asarray(run(leaf, ()))
    return (time.perf_counter() - begin) / 20 * 1e3


class Peak:
    """The most that this process holds resident from now on."""

    def __init__(self):
        self.bytes, page = 0, os.sysconf("SC_PAGE_SIZE")

        def watch():
            while True:
                held = int(Path("/proc/self/statm").read_text().split()[1]) * page
                self.bytes = max(self.bytes, held)
                time.sleep(0.02)

        threading.Thread(target=watch, daemon=True).start()


def fresh(how, rows, devices=1, coordinator="", rank=0):
    """A process that prints ``measured``."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    words = ["--one", how, str(int(rows)), coordinator, str(rank)]
    return subprocess.Popen(
        [sys.executable, __file__, *words],
        env={**os.environ, "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
    )


def result(process):
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a run ended with status {process.returncode}")
    return json.loads(out.splitlines()[-1])


def in_two_processes(rows):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    both = [fresh("sharded", rows, 1, f"127.0.0.1:{port}", rank) for rank in (0, 1)]
    return result(both[0]) | {"processes": 2, "rank_1": result(both[1])["seconds_per_pass"]}


def in_turn(folder, rows, places):
    """Yields figures of the command line over one file, in ``places`` by turns."""
    import numpy as np

    block = np.random.default_rng(0).normal(size=(10**5, FEATURES + 1)).astype(np.float32)
    block[:, FEATURES] = block[:, 0] > 0
    with tempfile.TemporaryDirectory(dir=folder) as made:
        table, bounds = Path(made) / "table.npy", Path(made) / "bounds.json"
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, FEATURES + 1)}
        # Not by a memory map: what a process has held resident counts for those that it starts.
        with table.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, rows, len(block)):
                np.roll(block, start // len(block), axis=0).tofile(file)
        bounds.write_text(json.dumps({str(place): [-6, 6] for place in range(FEATURES)}))
        said = f"--label {FEATURES} --classes 0,1 --bounds {bounds}".split()
        scaled = table.with_name("scaled.npz")
        words = ["data", str(table), *said, "--memory-limit", LIMIT, "--write", str(scaled)]
        yield by_command("written", words, rows)
        figures = table.with_name("figures.json")
        for how in places * 2:
            words = f"run dp-tr --seed 0 --steps {FILE_STEPS} --json {figures} --data".split()
            words += [str(scaled)] if how == "scaled" else [str(table), *said]
            words += [] if how == "resident" else ["--memory-limit", LIMIT]
            found = by_command(how, words, rows)
            seconds = json.loads(figures.read_text())["seconds_run"] / FILE_STEPS
            yield found | {"seconds_per_pass": seconds}


def by_command(how, words, rows):
    """Figures of one command, a pass being all of it."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "dpjax", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"a run ended with status {os.waitstatus_to_exitcode(status)}")
    return {
        "how": how,
        "devices": 1,
        "rows": rows,
        "seconds_per_pass": time.perf_counter() - begin,
        "seconds_of_processors": used.ru_utime + used.ru_stime,
        "resident_gigabytes": used.ru_maxrss * 1024 / 1e9,
    }


def line(found):
    where = f"{found['devices']} devices" if found["devices"] > 1 else "1 device"
    if found.get("processes", 1) > 1:
        where += f" in {found['processes']} processes"
    per_row = found["seconds_per_pass"] / found["rows"] * 1e6

    def number(name, form, unit):
        held = found.get(name)
        return format("" if held is None else f"{held:{form}} {unit}", ">11")

    columns = [
        f"{found['how']:9} {where:24} {found['rows']:>12,}",
        f"{found['seconds_per_pass']:9.3f} s {per_row:7.3f} us",
        number("megabytes_per_device", ".1f", "MB"),
        number("collective_ms", ".2f", "ms"),
        number("resident_gigabytes", ".2f", "GB"),
        number("seconds_of_processors", ".0f", "s"),
    ]
    return "".join(columns).rstrip()


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--quick", action="store_true", help="a tenth of the rows")
    words.add_argument("--json", metavar="FILE", help="write the figures")
    words.add_argument("--folder", type=Path, help="time the command line over a file made there")
    words.add_argument("--unscaled", action="store_true", help="with --folder: see above")
    words.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = words.parse_args()
    if arguments.one:
        how, rows, coordinator, rank = arguments.one
        print(json.dumps(measured(how, int(rows), coordinator or None, int(rank))))
        return
    scale = 0.1 if arguments.quick else 1
    rows = int(COVERTYPE * scale)
    columns = "a pass      a row   a device       sums    process  processors"
    print(f"records   where                            rows     {columns}")
    found = []

    def show(one):
        found.append(one)
        print(line(one), flush=True)

    if arguments.folder:
        places = ("scaled", "resident", *["unscaled"] * arguments.unscaled)
        for one in in_turn(arguments.folder, int(FILE_ROWS * scale), places):
            show(one)
    else:
        compared(rows, scale, show)
        on_paper(found)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


def compared(rows, scale, show):
    """All but the command line."""
    show(result(fresh("resident", rows)))
    for devices in (2, 4, 8):
        show(result(fresh("sharded", rows, devices)))
    show(in_two_processes(rows))
    for size in (1e5, 1e6, 1e7, 1e8):
        show(result(fresh("streamed", size * scale)))
    show(result(fresh("resident", 1e6 * scale)))


def on_paper(found):
    """What many records on many devices would take."""
    resident, sums = found[0], found[4]["collective_ms"] / 1e3
    rate = resident["seconds_per_pass"] / resident["rows"]
    share = PEOPLE / GPUS * rate
    print(
        f"\nOn paper: {PEOPLE:.0e} records over {GPUS} devices that are each as fast as this CPU "
        f"take {share:,.0f} s a pass, and their sums {sums:.3f} s if the network between them is "
        f"as slow as between two processes here: {sums / share:.1e} of it. A device holds "
        f"{PEOPLE / GPUS * (FEATURES + 1) * 8 / 1e9:,.0f} GB of records, as given and prepared."
    )


if __name__ == "__main__":
    main()
