"""Who takes the steps of ``benchmarks/dp_step.py``: JAX in its process, PyTorch in another."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np


class Compiled:
    """One step of JAX, compiled ahead for its arguments."""

    def __init__(self, step, arguments):
        self.arguments = arguments
        self.call = jax.jit(step).lower(*arguments).compile()
        self.device = jax.devices()[0].device_kind

    def seconds(self):
        begin = time.perf_counter()
        jax.block_until_ready(self.call(*self.arguments))
        return time.perf_counter() - begin

    def planned(self):
        """Bytes of temporary arrays, or None where the compiler does not say."""
        analysis = self.call.memory_analysis()
        return None if analysis is None else analysis.temp_size_in_bytes

    def flat(self):
        leaves = jax.tree.leaves(self.call(*self.arguments))
        return np.concatenate([np.ravel(leaf) for leaf in leaves])


class Torch:
    """A process that takes one step of PyTorch when it is asked."""

    def __init__(self, interpreter, name, batch, threads):
        script = Path(__file__).with_name("dp_step_torch.py")
        command = [interpreter, str(script), name, str(batch), str(threads)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        hello = self._line()
        self.names, self.device = hello["names"], hello["device"]
        self.versions = hello["versions"]

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("PyTorch's process ended; its message is above.")
        return json.loads(line)

    def ask(self, what):
        print(what, file=self.process.stdin, flush=True)
        return self._line()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Asked:
    """One contender of that process."""

    def __init__(self, server, label):
        self.server, self.label, self.device = server, label, server.device

    def seconds(self):
        return self.server.ask(self.label)

    def planned(self):
        return None
