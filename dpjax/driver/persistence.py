"""``save`` and ``load``: parameters, history and guarantee on disk; never keys or secret state."""

import dataclasses
import json
import os
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np
from flax import serialization

from dpjax._typing import Params
from dpjax.accounting import Event, Release, epsilon
from dpjax.algorithms.base import recount_accountant
from dpjax.driver.solution import Solution

_FORMAT = "dpjax-solution-1"


@dataclasses.dataclass(frozen=True)
class SavedSolution:
    """What ``load`` gives back: the public part of a ``Solution``.

    Args:
      params: the trained parameters, with dictionaries in place of other containers.
      history: dictionary of arrays.
      steps: steps taken.
      status: a ``Status``.
      certificate: dictionary, or None.
      certified_params: parameters the certificate speaks of, or None.
      event: what was released.
      accountant: the one that recounts it.
      text: the guarantee as it was printed.

    Privacy: all of it is covered by the guarantee.
    """

    params: Params
    history: dict[str, np.ndarray]
    steps: int
    status: int
    certificate: dict[str, Any] | None
    certified_params: Params | None
    event: Event
    accountant: str
    text: str

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon spent at ``delta``, recomputed from the releases."""
        return epsilon(self.event, delta, self.event.relation, self.accountant)

    def guarantee(self) -> str:
        """Returns the guarantee in words."""
        return self.text


def save(path: str | os.PathLike, solution: Solution) -> None:
    """Writes the public part of ``solution`` to one file, all or nothing.

    Args:
      path: file to write or replace.
      solution: one solution, not a batch.

    Raises:
      ValueError: for a batch of solutions.

    Privacy: writes params, history, certificate and guarantee; no key, no data, no secret state.

    >>> import jax, jax.numpy as jnp, dpjax, tempfile, os
    >>> budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-3)
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), budget, data_size=50, dimension=2, steps=4)
    >>> x = jnp.ones((50, 2)) / 2 ** 0.5
    >>> solution = dpjax.solve(algorithm, (x, jnp.ones(50)), key=jax.random.key(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(os.path.join(folder, "model"), solution)
    ...     bool((load(os.path.join(folder, "model")).params == solution.params).all())
    True
    """
    if np.ndim(solution.steps):
        raise ValueError("save takes one solution; index a batch with jax.tree.map first.")
    event = solution.event
    certificate = solution.certificate
    content = {
        "format": _FORMAT,
        "params": serialization.to_state_dict(_host(solution.params)),
        "history": _host(solution.history._asdict()),
        "steps": int(solution.steps),
        "status": int(solution.status),
        "certificate": None if certificate is None else _host(dataclasses.asdict(certificate)),
        "certified_params": serialization.to_state_dict(_host(solution.certified_params)),
        "releases": json.dumps([dataclasses.asdict(release) for release in event.releases]),
        "relation": event.relation,
        "accountant": recount_accountant(solution.algorithm.accountant),
        "text": solution.guarantee(),
    }
    target = pathlib.Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        temporary = pathlib.Path(folder, "solution")
        with open(temporary, "wb") as file:
            file.write(serialization.msgpack_serialize(content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)


def load(path: str | os.PathLike) -> SavedSolution:
    """Returns what ``save`` wrote.

    Args:
      path: a file written by ``save``.

    Raises:
      ValueError: if the file is something else.
      FileNotFoundError: if there is none.
    """
    raw = pathlib.Path(path).read_bytes()
    fields = ("params", "history", "steps", "status", "certificate", "certified_params")
    try:
        content: Any = serialization.msgpack_restore(raw)
        if content["format"] != _FORMAT:
            raise KeyError
        releases = tuple(Release.from_fields(r) for r in json.loads(content["releases"]))
        return SavedSolution(
            **{field: content[field] for field in fields},
            event=Event(releases, content["relation"]),
            accountant=content["accountant"],
            text=content["text"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a solution saved by dpjax.") from error


def _host(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, str) else np.asarray(leaf), tree)
