"""The interface of an oracle, and checks of shapes and dtypes, which cost no privacy."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, Relation
from dpjax._wide import Expansion, on_device
from dpjax.accounting import Event, Release, records_moved
from dpjax.accounting.wording import ReleaseWords
from dpjax.datasets.base import check_arrays
from dpjax.derivatives import flatten, keeps_positions, linear_model, most_rows, rounding_slack
from dpjax.derivatives.rounding import BLOCK
from dpjax.mechanisms import derive
from dpjax.mechanisms.noise import Gaussian, Noise
from dpjax.objectives import Objective
from dpjax.oracles.once import only_where
from dpjax.sampling import Sampler

Records = PyTree


class Evaluations(NamedTuple):
    """Gradients of one record that are computed: those of the draws as declared, and with padding.

    The second counts rows of fixed shapes that hold no record too: a batch's whole capacity, filled
    up to blocks of 128.
    """

    declared: int
    padded: int


class Query:
    """One question to the data: an exact value, a bound on one record's part in it, and noise.

    ``answer`` is the only door through which anything above learns about records, and it is written
    once, here: draw, compute the exact value, add noise, post-process. ``event`` is computed from
    the same fields that scale the noise. All that an answer holds is one release, of one joint
    vector, on a draw of its own.

    A subclass has the fields below, the properties ``name``, ``unit`` and ``components``, and
    ``exact``; where the defaults do not fit, ``noises``, ``stddevs``, ``finish`` with its inverse
    ``parts_of``, ``is_asked`` and ``inner_noise``.
    """

    noise_multiplier: Array | float
    sampler: Sampler | None
    objective: Objective
    data_size: int
    relation: Relation
    unsafe_fast_noise: bool

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        raise NotImplementedError

    @property
    def unit(self) -> Array | float:
        """What one record contributes to the sum at most, in the units of the gradient."""
        raise NotImplementedError

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        """Name and standard deviation of each part of the released mean; on the host."""
        raise NotImplementedError

    @property
    def words(self) -> ReleaseWords:
        """What the guarantee says of a release beside its numbers."""
        return ReleaseWords()

    @property
    def purpose(self) -> str:
        """What the key of the noise is derived for."""
        return self.name

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the value without noise, in parts. NOT PRIVATE; all that reads records.

        Args:
          records: those of one draw, see ``bind``.
          params: where.
          mask: bool, the rows that count; None for all.
          **public: what else the question needs, released before or public.
        """
        raise NotImplementedError

    def noises(self, **public: Any) -> tuple[tuple[str, Noise], ...]:
        """Returns for each part the purpose of its key, and the noise that is added to it."""
        del public
        return ((self.purpose, Gaussian(self.unsafe_fast_noise)),)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns the scale of the noise on each part of the exact value; public."""
        del params, public
        return (self._noise_on_sum(self.unit),)

    def finish(self, noisy: tuple[Array, ...], params: Params) -> PyTree:
        """Returns the answer made of the noisy parts: post-processing. Here a mean like params."""
        (total,) = noisy
        return flatten(params)[1](total / self.divisor, as_sum=True)

    def parts_of(self, answer: PyTree) -> tuple[Array, ...]:
        """Returns the noisy parts that an answer was made of, up to rounding."""
        return (ravel_pytree(answer)[0] * self.divisor,)

    def likelihood(
        self,
        answer: PyTree,
        records: Records,
        params: Params,
        mask: Array | None = None,
        **public: Any,
    ) -> tuple[tuple[Noise, Array, Array, Any], ...]:
        """Returns what an attacker compares: of each part noise, answer, mean and scale.

        Args:
          answer: that was released at ``params``.
          records: of which the mean is computed, as ``exact`` reads them.
          params: where.
          mask: as ``exact``.
          **public: as ``exact``.

        Privacy: NOT PRIVATE; for audits on made-up records.
        """
        exact = (value.leading for value in self.exact(records, params, mask, **public))
        noises = (noise for _, noise in self.noises(**public))
        seen, stddevs = self.parts_of(answer), self.stddevs(params, **public)
        return tuple(zip(noises, seen, exact, stddevs, strict=True))

    def nothing_seen(self, params: Params) -> tuple[PyTree, ...]:
        """Returns what the score of an answer needs of those before the first; for audits.

        Args:
          params: of the algorithm, whose size is that of an answer's part.
        """
        size = flatten(params)[0].size
        return tuple(noise.nothing_seen(size) for _, noise in self.noises())

    def is_asked(self, **public: Any) -> Array | None:
        """Returns whether records are read at all, bool (); None where they always are."""
        del public
        return None

    def inner_noise(self, key: Array, records: Records, params: Params) -> dict[str, Any]:
        """Returns noise that goes into ``exact`` as further arguments; secret."""
        del key, records, params
        return {}

    def answer(self, key: Array, records: Records, params: Params, **public: Any) -> PyTree:
        """Returns the noisy answer at ``params``.

        Args:
          key: of this question alone.
          records: see ``bind``.
          params: floating pytree, released before.
          **public: what else the question needs, see ``exact``.

        Privacy: see the class.
        """
        asked = self.is_asked(**public)
        if asked is None:
            return self._answer(key, records, params, **public)

        def compute(params: Params) -> PyTree:
            return self._answer(key, records, params, **public)

        nothing = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(compute, params)
        )
        return only_where(asked, compute, params, nothing)

    def _answer(self, key: Array, records: Records, params: Params, **public: Any) -> PyTree:
        batch, mask = self._drawn(key, records)
        inner = self.inner_noise(key, records, params)
        exact = self.exact(batch, params, mask, **public, **inner)
        noises, stddevs = self.noises(**public), self.stddevs(params, **public)
        noisy = tuple(
            noise.add(derive(key, purpose, 0), value, stddev)
            for value, (purpose, noise), stddev in zip(exact, noises, stddevs, strict=True)
        )
        return self.finish(noisy, params)

    @property
    def gradients(self) -> int:
        """How many gradients of each record one answer takes."""
        return 1

    def evaluations(self, count: int) -> Evaluations:
        """Returns the gradients that ``count`` answers take; on the host."""
        rows = self.data_size if self.sampler is None else self.sampler.capacity
        padded = -(-rows // BLOCK) * BLOCK if rows > BLOCK else rows
        declared = round(count * self.gradients * float(self.divisor))
        return Evaluations(declared, count * self.gradients * padded)

    @property
    def closed_form(self) -> bool:
        """Whether records of a margin loss are prepared for its closed form, once per training."""
        return self.sampler is None

    @property
    def divisor(self) -> Array | float:
        """What sums are divided by: the declared n or expected batch, never a realised size."""
        return float(self.data_size) if self.sampler is None else self.sampler.expected

    @property
    def slack(self) -> float:
        """What rounding adds to the distance of neighbouring sums, in contributions."""
        rows = self.data_size if self.sampler is None else self.sampler.capacity
        return rounding_slack(most_rows(rows, self.relation), self.relation)

    @property
    def any_order(self) -> bool:
        """Whether neighbours may have their common rows in other places."""
        return not keeps_positions(self.relation)

    @property
    def sensitivity(self) -> Array | float:
        """What the noise multiplier is relative to, on the released mean.

        Its l2 sensitivity; sampled, the bound on one record's part.
        """
        return self._of_mean(self.unit)

    @property
    def stddev(self) -> Array | float:
        """Standard deviation of the noise on the released mean."""
        return self.noise_multiplier * self.sensitivity

    def event(self, count: int) -> Event:
        """Returns what ``count`` answers release: one Gaussian each, as the sampler has it."""
        multiplier = float(self.noise_multiplier)
        check_sampler(self.sampler, self.data_size)
        if self.sampler is None:
            release = Release(
                self.name,
                count,
                noise_multiplier=multiplier,
                sensitivity=float(self.sensitivity),
                components=self.components,
            )
        else:
            release = self.sampler.release(
                self.name,
                count,
                noise_multiplier=multiplier,
                relation=self.relation,
                record_norm=float(self.unit) * (1 + self.slack),
                components=self.components,
            )
        release = dataclasses.replace(
            release, unsafe_fast_noise=self.unsafe_fast_noise, words=self.words
        )
        return Event((release,), self.relation)

    def _of_mean(self, unit: Array | float) -> Array | float:
        if self.sampler is None:
            moved = records_moved(self.relation) + self.slack
            return moved * unit / self.divisor
        return self.sampler.scale(unit * (1 + self.slack), self.relation)

    def _noise_on_sum(self, unit: Array | float) -> Array | float:
        # The sum is perturbed and then divided: rounding in the division is post-processing.
        return self.noise_multiplier * (self._of_mean(unit) * self.divisor)

    def _drawn(self, key: Array, records: Records) -> tuple[Records, Array | None]:
        """The records of one draw, and which of them count."""
        if self.sampler is None:
            return records, None
        return self.sampler.draw(derive(key, "sample", 0), records)


class ValueQuery(Query):
    """A question whose exact value is released as it is, not divided: ``stddev`` is its noise."""

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns the standard deviation of the noise on the value."""
        del params, public
        return (self.stddev,)

    def finish(self, noisy: tuple[Array, ...], params: Params) -> PyTree:
        """Returns the noisy value."""
        del params
        return noisy[0]

    def parts_of(self, answer: PyTree) -> tuple[Array, ...]:
        """Returns the noisy value."""
        return (answer,)


def check_sampler(sampler: Sampler | None, data_size: int) -> None:
    """Raises if a sampler was made for other data than a query.

    Raises:
      ValueError: naming both sizes.
    """
    if sampler is not None and sampler.data_size != data_size:
        raise ValueError(
            f"the sampler draws from data_size={sampler.data_size}, the query declares "
            f"{data_size}; make both with the same number."
        )


def bind(query: Query, examples: PyTree) -> Records:
    """Returns ``examples`` in the form ``query`` reads, made once per training.

    Args:
      query: any query.
      examples: tuple ``(x, y)`` where the objective has a margin, else any pytree whose leaves
        share their leading axis. Rows that are drawn stay as they are, to be gathered.

    Privacy: raw data; stays inside the program of a training and is never returned by one.
    """
    examples = on_device(examples)
    if query.objective.margin is not None and query.closed_form:
        return linear_model.prepare(examples)
    return examples


def check_examples(query: Query, examples: PyTree, params: Params) -> None:
    """Raises if data, parameters and the declared numbers do not fit together.

    Args:
      query: whose objective, data size and relation the data must fit.
      examples: see ``bind``.
      params: floating pytree.

    Raises:
      ValueError: for empty data, leaves of different length, integer features, parameters whose
        shape does not fit, or a ``data_size`` that is not n (unless n is private).

    Privacy: reads shapes and dtypes, no value. Where n is private no message names it; that empty
      data are refused does tell n = 0 from n = 1.
    """
    check_arrays("data", examples)
    leaves = jax.tree.leaves(examples)
    if not leaves or any(jnp.ndim(leaf) == 0 for leaf in leaves):
        raise ValueError("data must be a Dataset, or a pytree of arrays with one row per record.")
    lengths = {jnp.shape(leaf)[0] for leaf in leaves}
    if len(lengths) > 1:
        raise ValueError("all leaves of the data must have the same number of rows.")
    (n,) = lengths
    if n == 0:
        raise ValueError("the data are empty: n = 0.")
    if query.relation != "add_or_remove_one" and n != query.data_size:
        raise ValueError(
            f"data_size={query.data_size} was declared, but the data have {n} rows; declare the "
            "public n, or use relation='add_or_remove_one' if n is private."
        )
    check_sampler(query.sampler, query.data_size)
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"params must be floating, got {jnp.result_type(leaf)}.")
    if query.objective.margin is not None:
        _check_margin_examples(examples, params)
    if hasattr(query, "check_examples"):
        query.check_examples(examples, params)  # pyright: ignore[reportAttributeAccessIssue]


def _check_margin_examples(examples: PyTree, params: Params) -> None:
    if not (isinstance(examples, tuple) and len(examples) == 2):
        raise ValueError(
            "this objective reads examples (x, y): pass the tuple (x, y) or a Dataset."
        )
    x, y = examples
    y_dtype = getattr(y, "dtype", None)
    y_dtype = np.asarray(y).dtype if y_dtype is None else y_dtype
    if jnp.ndim(x) != 2 or jnp.ndim(y) != 1:
        raise ValueError(
            f"x must have shape (n, p) and y (n,), got {jnp.ndim(x)} and {jnp.ndim(y)} axes."
        )
    if not jnp.issubdtype(y_dtype, jnp.number) or jnp.issubdtype(y_dtype, jnp.complexfloating):
        raise ValueError(f"labels must be numbers, -1 or +1, got {y_dtype}.")
    if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        raise ValueError(
            f"features must be floating, got {jnp.result_type(x)}; scale them by declared bounds "
            "and convert them, x.astype('float32')."
        )
    if jnp.shape(params) != (jnp.shape(x)[1],):
        raise ValueError(
            f"params must have shape ({jnp.shape(x)[1]},) to fit x, got {jnp.shape(params)}."
        )
