"""``Query``: one question to the data; the one place that draws, computes, adds noise and books."""

import dataclasses
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, Relation, is_own
from dpjax._wide import Expansion
from dpjax.accounting import Event, Release
from dpjax.accounting.wording import ReleaseWords
from dpjax.derivatives import flatten, keeps_positions, most_rows, sum_slack
from dpjax.derivatives.rounding import BLOCK
from dpjax.mechanisms import derive
from dpjax.mechanisms.noise import Gaussian, Noise
from dpjax.objectives import Objective
from dpjax.oracles.once import only_where
from dpjax.oracles.setting import Setting
from dpjax.sampling import Sampler

Records = PyTree

_Law = TypeVar("_Law", bound=Noise)


class Evaluations(NamedTuple):
    """Gradients of one record that are computed: those of the draws as declared, and with padding.

    The second counts rows of fixed shapes that hold no record too: a batch's whole capacity, filled
    up to blocks of 128.
    """

    declared: int
    padded: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """One question to the data: an exact value, a bound on one record's part in it, and noise.

    ``answer`` is the only door through which anything above learns about records, and it is written
    once, here: draw, compute the exact value, add noise, post-process. ``event`` is computed from
    the same fields that scale the noise. All that an answer holds is one release, of one joint
    vector, on a draw of its own.

    A subclass is a ``pytree_dataclass``; its fields, like those below, are given by name. It has
    the properties ``name`` and ``components``, and the methods ``exact`` and ``bound``; where the
    defaults do not fit, the class attribute ``noise``, or ``noises``, ``stddevs``, ``finish`` with
    its inverse ``parts_of``, ``is_asked``, ``inner_noise``, ``releases``, ``step_key``, and
    ``memory`` with ``renews``. ``answer`` and ``event`` are final.

    Args:
      setting: objective, declared n, relation, sampler, and how noise is drawn.
      noise_multiplier: standard deviation of the noise over ``sensitivity``.
    """

    setting: Setting
    noise_multiplier: Array | float

    noise: ClassVar[Noise] = Gaussian()
    """The law of the noise; its ``mechanism`` names the kind of release."""

    @property
    def objective(self) -> Objective:
        """Whose ``loss`` is differentiated."""
        return self.setting.objective

    @property
    def data_size(self) -> int:
        """The declared public n."""
        return self.setting.data_size

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.setting.relation

    @property
    def sampler(self) -> Sampler:
        """Who is asked."""
        return self.setting.sampler

    @property
    def unsafe_fast_noise(self) -> bool:
        """Whether noise is plain float32, NOT for a release."""
        return self.setting.unsafe_fast_noise

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        raise NotImplementedError

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """Returns a bound on the l2 norm of one record's contribution to the exact sum; public.

        It must hold for every record, whatever is in it, without what rounding adds and without the
        factor of the relation. The noise is in proportion to it.

        Args:
          params: where; None for the largest of all, which the guarantee prints.
          **public: as ``exact``.
        """
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
        return ((self.purpose, self.noise),)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns the scale of the noise on each part of the exact value; public."""
        return (self._noise_on_sum(self.bound(params, **public)),)

    def finish(self, noisy: tuple[Array, ...], params: Params) -> PyTree:
        """Returns the answer made of the noisy parts: post-processing. Here a mean like params."""
        total = self._shape_of(noisy[0], params)
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
        """Returns whether records are read at all, bool (); None where they always are.

        The condition is ``asked``, where the question has it: public or of released values. The
        answer is 0 where it is not asked.
        """
        return public.get("asked")

    def step_key(self, key: Array, step: Array | int, **public: Any) -> Array:
        """Returns the key of one answer: of this query and the step alone, so that none repeats.

        Args:
          key: of the training, shape ().
          step: number of the step.
          **public: as ``exact``; noise that is correlated over steps shares one key.
        """
        del public
        return derive(key, self.name, step)

    def memory(self, records: Records, params: Params, **public: Any) -> PyTree | None:
        """Returns what later answers need of the records beside their own draw. NOT PRIVATE.

        None, as here, where nothing is remembered. Otherwise the driver keeps it from step to step,
        computes it again where ``renews`` says so or where a run is resumed, and hands it to
        ``exact`` as ``memory``: until it is renewed it must be the same whenever it is computed.

        Args:
          records: all of them, see ``bind``.
          params: of the question.
          **public: likewise.

        Privacy: SECRET. It is in no state, history, solution or checkpoint; a record's part in it
          counts in ``bound``, or in what ``event`` says of a record that is not drawn.
        """
        del records, params, public
        return None

    @property
    def remembers(self) -> bool:
        """Whether this class has a ``memory``."""
        return type(self).memory is not Query.memory

    def renews(self, **public: Any) -> Array | bool:
        """Returns whether ``memory`` is another one than at the step before, bool ()."""
        del public
        return False

    def check_examples(self, examples: PyTree, params: Params) -> None:
        """Raises, before anything is spent, for examples that this query cannot read.

        Args:
          examples: as the module's ``check_examples``, which has checked them.
          params: likewise.

        Privacy: may read shapes and dtypes, no value.
        """
        del examples, params

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
        if not isinstance(exact, tuple) or len(exact) != len(noises):
            raise ValueError(
                f"exact of {type(self).__name__} must return a tuple of {len(noises)} sums, one "
                "for each noise."
            )
        noisy = tuple(
            self._as_set(noise).add(derive(key, purpose, 0), value, stddev)
            for value, (purpose, noise), stddev in zip(exact, noises, stddevs, strict=True)
        )
        return self.finish(noisy, params)

    def _shape_of(self, noisy: Array, params: Params) -> Array:
        """Returns a sum that is to be a pytree like ``params``, or raises for another shape."""
        size = flatten(params)[0].size
        if jnp.shape(noisy) != (size,):
            raise ValueError(
                f"exact of {type(self).__name__} returned a sum of shape {jnp.shape(noisy)}, where "
                f"the answer is a mean like the {size} parameters: return their flat sum ({size},)"
                ", or define finish."
            )
        return noisy

    @property
    def gradients(self) -> int:
        """How many gradients of each record one answer takes."""
        return 1

    def evaluations(self, count: int) -> Evaluations:
        """Returns the gradients that ``count`` answers take; on the host."""
        rows = self.sampler.capacity
        padded = -(-rows // BLOCK) * BLOCK if rows > BLOCK else rows
        declared = round(count * self.gradients * float(self.divisor))
        return Evaluations(declared, count * self.gradients * padded)

    @property
    def closed_form(self) -> bool:
        """Whether records of a margin loss are prepared for its closed form, once per training."""
        return self.sampler.reads_all

    @property
    def divisor(self) -> Array | float:
        """What sums are divided by: the declared n or expected batch, never a realised size."""
        return self.sampler.expected

    @property
    def slack(self) -> float:
        """What rounding adds to the distance of neighbouring sums, in contributions."""
        return self._slack_of(self.sampler.capacity)

    @property
    def any_order(self) -> bool:
        """Whether neighbours may have their common rows in other places."""
        return not keeps_positions(self.relation)

    @property
    def sensitivity(self) -> Array | float:
        """What the noise multiplier is relative to, on the released mean.

        Its l2 sensitivity; sampled, the bound on one record's part.
        """
        return self._of_mean(self.bound())

    @property
    def stddev(self) -> Array | float:
        """Standard deviation of the noise on the released mean."""
        return self.noise_multiplier * self.sensitivity

    def event(self, count: int) -> Event:
        """Returns what ``count`` answers release; on the host.

        Raises:
          ValueError: for a sampler that has no accounting for the relation or the noise.
        """
        check_sampler(self.sampler, self.data_size)
        fast = self.setting.unsafe_fast_noise
        released = (
            dataclasses.replace(release, unsafe_fast_noise=fast, words=self._said_of(release))
            for release in self.releases(count)
        )
        return Event(tuple(released), self.relation)

    def releases(self, count: int) -> tuple[Release, ...]:
        """Returns the releases of ``event``: here one an answer, of noise on the sampler's draw."""
        return (self._release(count),)

    def _release(self, count: int, **own: Any) -> Release:
        return self.sampler.released(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            sensitivity=float(self.sensitivity),
            components=self.components,
            mechanism=self.noise.mechanism,
            words=self.words,
            **own,
        )

    def _said_of(self, release: Release) -> ReleaseWords:
        if is_own(self):
            return release.words
        return release.words._replace(bound=f"asserted by {type(self).__name__}, not by dpjax")

    def _as_set(self, noise: _Law) -> _Law:
        """The noise, drawn as the setting says: the one place that hands the flag on."""
        fast = self.setting.unsafe_fast_noise
        if noise.unsafe_fast == fast:
            return noise
        return dataclasses.replace(noise, unsafe_fast=fast)

    def _slack_of(self, rows: int) -> float:
        # Noise is added to the sum in float64, before it is narrowed.
        declared = most_rows(rows, self.relation)
        return sum_slack(declared, self.relation, self.any_order, narrowed=False)

    def _on_sum(self, bound: Array | float) -> Array | float:
        return self.sampler.sum_scale(bound, self.relation, self.slack)

    def _of_mean(self, bound: Array | float) -> Array | float:
        return self._on_sum(bound) / self.divisor

    def _noise_on_sum(self, bound: Array | float) -> Array | float:
        # The sum is perturbed and then divided: rounding in the division is post-processing.
        return self.noise_multiplier * (self._of_mean(bound) * self.divisor)

    def _drawn(self, key: Array, records: Records) -> tuple[Records, Array | None]:
        """The records of one draw, and which of them count."""
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


def check_sampler(sampler: Sampler, data_size: int) -> None:
    """Raises if a sampler was made for other data than a query.

    Raises:
      ValueError: naming both sizes.
    """
    if sampler.data_size != data_size:
        raise ValueError(
            f"the sampler draws from data_size={sampler.data_size}, the query declares "
            f"{data_size}; make both with the same number."
        )
