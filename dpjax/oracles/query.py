"""``Query``: one question to the data: a batch is drawn, a bounded value computed, noise added."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, Relation
from dpjax._wide import Expansion
from dpjax.accounting import Event, Release
from dpjax.accounting.release import Quantity
from dpjax.derivatives import flatten, keeps_positions, most_rows, sum_rounding_error
from dpjax.derivatives.rounding import BLOCK, shift_rounding_error
from dpjax.mechanisms.keys import derive, purpose_word
from dpjax.mechanisms.noise import Gaussian, Noise
from dpjax.objectives import Objective
from dpjax.oracles.keyed import redrawn
from dpjax.oracles.setting import ClippedSums, Evaluations, Setting
from dpjax.placement.shard import Spread, over_shares
from dpjax.sampling.samplers import Sampler, expect

Records = PyTree
Mask = Array | None
Sums = tuple[Expansion, ...]
_BATCH = "sample"  # the purpose of the key that draws the batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """One question to the data: an exact value, a bound on one record's contribution, and noise.

    Algorithms learn about records through ``answer`` alone. It is written once, here: draw a batch,
    compute the exact value, add noise, post-process. ``event`` is computed from the same fields
    that scale the noise, so what is accounted is what is added; a subclass that overrides one must
    keep both consistent, which dpjax cannot check. By default each answer is one release of one
    joint vector on its own batch; a subclass whose answers share noise or a pass says ``releases``.

    A subclass is a ``pytree_dataclass`` with keyword-only fields. It must define ``name``,
    ``exact`` and ``bound``. It may define

    - the noise: ``noise``; where ``exact`` has several parts, ``noises`` and ``stddevs``;
      ``purpose``, ``step_key``;
    - what becomes of the noisy parts: ``postprocess``, its inverse ``noisy_parts``, and
      ``evidence``;
    - what is accounted and said of it: ``releases``, ``sensitivity``, ``divisor``, ``components``,
      ``description``, ``noise_draws`` and ``most_answers``;
    - that ``exact`` is made of dpjax's clipped sums: ``sums``, which no subclass inherits;
    - which records are read and when: ``sampler``, ``closed_form``, ``is_asked``,
      ``secret_arguments``, ``check_examples``, ``gradients_per_record``.

    ``answer`` and ``event`` are final.

    Args:
      setting: objective, declared n, relation and sampler.
      noise_multiplier: standard deviation of the noise divided by ``sensitivity``.
    """

    setting: Setting
    noise_multiplier: Array | float

    name: ClassVar[str]
    """The name of the query and of its release, unique among the queries of an algorithm."""
    quantity: ClassVar[Quantity] = Quantity()
    """What is released, for the guarantee, which has words for dpjax's own kinds."""
    closed_form_for_units: ClassVar[bool] = False
    """Whether ``exact`` has a closed form for units of several records."""
    noise: ClassVar[Noise] = Gaussian()
    """The law of the noise; its ``mechanism`` names the kind of release."""
    gradients_per_record: ClassVar[int] = 1
    """Gradients that one answer computes of each record in its batch."""
    description: ClassVar[str] = ""
    """Of a class of your own: what is released and with which noise, for the guarantee."""
    reads: ClassVar[type[Sampler]] = Sampler  # the kind of sampler that a subclass needs
    # Whether rounding in another row can move a contribution by more than is charged: a difference
    # cancels, a count flips.
    _jumps: ClassVar[bool] = False
    sums: ClassVar[ClippedSums | None] = None
    """How the sums of ``exact`` are made; if None, one rounded addition a row is charged."""

    @property
    def _sums(self) -> ClippedSums | None:
        # Read from the class itself and not from its bases, whose ``exact`` may be another.
        return type(self).__dict__.get("sums")

    @property
    def objective(self) -> Objective:
        """The objective, whose ``loss`` the question is about."""
        return self.setting.objective

    @property
    def data_size(self) -> int:
        """The declared number n, public; under add_or_remove_one the true number is private."""
        return self.setting.data_size

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.setting.relation

    @property
    def takes_canaries(self) -> bool:
        """Whether ``canary_scores`` attacks its answers, which are then asked with ``included``."""
        return False

    @property
    def sampler(self) -> Sampler:
        """The sampler, which decides which records an answer reads."""
        return expect(self.reads, self.setting.sampler, type(self).__name__)

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """Returns a bound on the l2 norm of one record's contribution to the exact sum; public.

        It must hold for every possible record, in exact arithmetic. Rounding and the factor 2 of
        ``replace_one`` are no part of it: the sampler or its accounting applies them. The noise is
        proportional to it.

        It holds at ``params``, or with None everywhere, as for the sensitivity in the guarantee.
        """
        raise NotImplementedError

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        """Name and noise std of each part of the released mean; not under jit or vmap."""
        return ((self.purpose, float(self.stddev)),)

    @property
    def purpose(self) -> str:
        """The label from which the noise key is derived; one for each independent noise."""
        return self.name

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the value without noise, one ``Expansion`` for each of ``noises``. NOT PRIVATE.

        Besides ``secret_arguments`` it is the only method that may read records.

        Args:
          records: those of one batch, see ``bind``.
          params: the point of evaluation.
          mask: bool, the rows that count; None for all.
          **public: further inputs, each a public constant or a value released before; and what
            ``secret_arguments`` returned.
        """
        raise NotImplementedError

    def noises(self, **public: Any) -> tuple[tuple[str, Noise], ...]:
        """Returns (label of the key, law of the noise) for each part of the exact value."""
        return ((self.purpose, self.noise),)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns, for each part of the exact value, the scale of its noise, see ``Noise``."""
        return (self._sum_noise_std(self.bound(params, **public)),)

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> PyTree:
        """Returns the answer, from the noisy parts: by default their mean, a pytree like params."""
        flat, unflatten = flatten(params)
        if (shape := jnp.shape(noisy[0])) != flat.shape:
            raise ValueError(
                f"exact of {type(self).__name__} returned a sum of shape {shape}; it must have "
                f"shape ({flat.size},), one entry for each parameter, unless the class defines "
                "postprocess and noisy_parts."
            )
        return unflatten(noisy[0] / self.divisor, as_sum=True)

    def noisy_parts(self, answer: PyTree) -> tuple[Array, ...]:
        """Returns the noisy parts that an answer was made of, up to rounding."""
        return (ravel_pytree(answer)[0] * self.divisor,)

    def likelihood_terms(
        self, answer: PyTree, records: Records, params: Params, mask: Mask = None, **public: Any
    ) -> tuple[tuple[Noise, Array, Array, Any], ...]:
        """Returns for each part its noise's law, the noisy part, the exact part, and the scale.

        ``answer`` was released at ``params``; the exact part is that of ``records``, see ``exact``.

        Privacy: NOT PRIVATE; for audits on made-up records.
        """
        # The leading term is the sum rounded once, which is precise enough for an audit.
        exact = (value.leading for value in self.exact(records, params, mask, **public))
        noises = (noise for _, noise in self.noises(**public))
        seen, stddevs = self.noisy_parts(answer), self.stddevs(params, **public)
        return tuple(zip(noises, seen, exact, stddevs, strict=True))

    def evidence(self, answer: PyTree, params: Params, **public: Any) -> list[tuple[Any, Any]]:
        """Returns ``Noise.excess`` of each part, as if no record contributed; [] if not known."""
        parts, stddevs = self.noisy_parts(answer), self.stddevs(params, **public)
        of_each = zip(self.noises(**public), parts, stddevs, strict=True)
        return [noise.excess(part, stddev) for (_, noise), part, stddev in of_each]

    def initial_score(self, params: Params) -> tuple[PyTree, ...]:
        """Returns, for each part, the state of an audit's score before any answer.

        Each part is taken to hold as many numbers as ``params``, those of the algorithm.
        """
        size = flatten(params)[0].size
        return tuple(noise.initial_score(size) for _, noise in self.noises())

    def is_asked(self, **public: Any) -> Array | None:
        """Returns whether an answer reads the records, bool (); None if it always does.

        By default it is the argument ``asked`` of ``**public``, if there is one, which must follow
        from public and released values alone. Where it is False the answer is 0, without noise.
        """
        return public.get("asked")

    def step_key(self, key: Array, step: Array | int, **public: Any) -> Array:
        """Returns the key of one answer: by default from name and step, so that none is reused.

        Noise that is correlated over steps has one key; ``key`` is that of the training.
        """
        return derive(key, self.name, step)

    def check_examples(self, examples: PyTree, params: Params) -> None:
        """Raises, before anything is spent, for examples that this query cannot read.

        They are as given to ``solve``. Privacy: may read shapes and dtypes, no value.
        """

    def arranged(self, records: Records, **public: Any) -> Records:
        """Returns records as ``exact`` reads them too, made once for many answers; secret.

        ``public`` is what ``Algorithm.fixed`` returns; each is a function of one record and of it.
        """
        return records

    def secret_arguments(
        self, key: Array, records: Records, params: Params, **public: Any
    ) -> dict[str, Any]:
        """Returns further arguments of ``exact``, which are not released; {} by default.

        Such as a random term of an objective, or an exact sum over all records that is added to
        that of each batch. ``key`` is of this answer alone, and ``records`` are all, see ``bind``.

        Privacy: SECRET; they live within one answer. What they read of a record moves the answer
          even where that record is not drawn: ``bound`` and ``releases`` must count it.
        """
        return {}

    def answer(self, key: Array, records: Records, params: Params, **public: Any) -> PyTree:
        """Returns the noisy answer at ``params``, public or released before.

        ``key`` is of this answer alone; ``records`` are as ``bind`` makes them.

        Privacy: what is released is what ``event`` says.
        """

        def compute(params: Params) -> PyTree:
            exact = self._exact_parts(key, records, params, **public)
            return self._perturbed(key, exact, params, **public)

        if (asked := self.is_asked(**public)) is None:
            return compute(params)
        # Its shapes alone: nothing is asked yet.
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(compute, params))
        return cond_under_vmap(asked, compute, params, nothing)

    def _perturbed(self, key: Array, exact: Sums, params: Params, **public: Any) -> PyTree:
        """Returns the answer to ``exact``, with its noise."""
        noises, stddevs = self.noises(**public), self.stddevs(params, **public)
        purposes = [purpose for purpose, _ in noises]
        # A key drawn with twice gives the same noise twice, or noise that follows the batch.
        words = [purpose_word(label) for label in (*purposes, _BATCH)]
        if len(set(words)) < len(words):
            raise ValueError(
                f"the noise keys of {type(self).__name__} are derived from the labels {purposes} "
                f"in noises(): make them distinct, and none {_BATCH!r}, which draws the batch."
            )
        if not isinstance(exact, tuple) or [*map(type, exact)] != [Expansion] * len(noises):
            raise ValueError(
                f"exact of {type(self).__name__} must return a tuple of {len(noises)} sums as "
                "accumulate makes them, one for each of noises()."
            )
        noisy = tuple(
            # Step 0 for every part: this key belongs to one answer already.
            noise.add(derive(key, purpose, 0), value, stddev)
            for value, (purpose, noise), stddev in zip(exact, noises, stddevs, strict=True)
        )
        return self.postprocess(noisy, params)

    def _exact_parts(self, key: Array, records: Records, params: Params, **public: Any) -> Sums:
        """Returns ``exact`` of the batch that ``key`` draws. NOT PRIVATE."""
        batch, mask = self._drawn(key, records)
        if isinstance(batch, Spread) and self._sums is None:
            raise ValueError(
                f"{type(self).__name__} does not state sums = ClippedSums(), so its sums are those "
                "of one device: pass the data as they are, without distributed.shard."
            )
        secret = self.secret_arguments(key, records, params, **public)

        # The query and its numbers enter the program of a device's share as arguments.
        def exact(records: Records, mask: Mask, query: Query, params: Params, more: dict) -> Sums:
            return query.exact(records, params, mask, **more)

        return over_shares(exact, redrawn(key, batch), mask, self, params, public | secret)

    def evaluations(self, count: int) -> Evaluations:
        """Returns how many gradients ``count`` answers compute; not under jit or vmap."""
        rows = self.sampler.max_batch_size
        # As sums are made: of whole blocks of rows.
        padded = -(-rows // BLOCK) * BLOCK if rows > BLOCK else rows
        declared = round(count * self.gradients_per_record * float(self.divisor))
        return Evaluations(declared, count * self.gradients_per_record * padded)

    @property
    def closed_form(self) -> bool:
        """Whether rows of a linear model are scaled once a training, so that sums are products."""
        # Scaling all rows pays only if every answer reads all of them.
        return self.sampler.reads_all

    @property
    def divisor(self) -> Array | float:
        """What sums are divided by: the declared n or expected batch, never a drawn size."""
        return self.sampler.expected

    @property
    def rounding_error(self) -> float:
        """Bound on what rounding adds to the distance of neighbours, relative to ``bound``."""
        return self.rounding_error_of(self.sampler.max_batch_size)

    @property
    def permutation_invariant(self) -> bool:
        """Whether sums must not depend on row order, as rows of neighbours may be shifted."""
        return not keeps_positions(self.relation)

    @property
    def sensitivity(self) -> Array | float:
        """The noise std of the released mean over ``noise_multiplier``, at the largest bound.

        Without sampling, the mean's l2 sensitivity; with sampling, the bound on what one drawn
        record adds; for ball noise, the sensitivity given that the record is drawn.
        """
        return self._mean_sensitivity(self.bound())

    @property
    def noise_draws(self) -> int:
        """How many numbers of noise an answer has at most; by default one for each parameter."""
        return self.setting.dimension

    def most_answers(self, times: int) -> int:
        """Returns an upper bound on how many of ``times`` answers add noise."""
        return times

    @property
    def stddev(self) -> Array | float:
        """Standard deviation of the noise on the released mean."""
        return self.noise_multiplier * self.sensitivity

    def event(self, count: int) -> Event:
        """Returns what ``count`` answers release; not under jit or vmap.

        Raises:
          ValueError: for a sampler that has no accounting for the relation or the noise, or draws
            from another number of records.
        """
        # A subclass may define its own sampler, and the charge assumes the declared n.
        self.setting.check_sampler(self.sampler)
        if self._jumps and self.permutation_invariant and not self.in_any_row:
            raise ValueError(
                f"under {self.relation!r} adding a record moves all later rows. A loss without a "
                f"closed form may round otherwise there, and the {self.name} amplifies that. Use "
                "relation='zero_out'."
            )
        released = (
            dataclasses.replace(release, quantity=self._stated(release.quantity))
            for release in self.releases(count)
        )
        return Event(tuple(released), self.relation)

    def _stated(self, quantity: Quantity) -> Quantity:
        name, sums = type(self).__name__, self._sums
        # The words of a proof are dpjax's own alone where dpjax has read the class.
        stated_by = "" if sums is None or sums.reviewed == name else name
        stated = Quantity(asserted_by=name) if sums is None else quantity
        return stated._replace(description=self.description, stated_by=stated_by)

    def releases(self, count: int) -> tuple[Release, ...]:
        """Returns the releases of ``event``: by default each answer is one, on its own batch."""
        return (self._release(count),)

    def _release(self, count: int, **own: Any) -> Release:
        return self.sampler.released(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            sensitivity=float(self.sensitivity),
            components=self.components,
            mechanism=self.noise.mechanism,
            quantity=self.quantity,
            **{"noise_draws": int(self.noise_draws), **own},
        )

    @property
    def charged_rows(self) -> int:
        """The number of rows up to which rounding in a sum is charged."""
        return most_rows(self.sampler.max_batch_size, self.relation, self.in_any_row)

    @property
    def in_any_row(self) -> bool:
        """Whether a contribution has the same bits in every row: in closed form, float64."""
        return self._sums is not None and self.objective.linear is not None

    def rounding_error_of(self, rows: int) -> float:
        """Returns ``rounding_error`` for sums over at most ``rows`` rows."""
        # Where a record may be added, sums may have more rows than are declared.
        charged = most_rows(rows, self.relation, self.in_any_row)
        # An added record moves all later rows, and each may round differently in its new place.
        shifted = 0.0 if self.in_any_row else shift_rounding_error(charged, self.relation)
        # Without a statement records may be added one by one, as by ``accumulate``.
        more = charged if self._sums is None else self._sums.additions
        # Noise is added before the sum is rounded to float32, so that rounding is not charged.
        return shifted + sum_rounding_error(
            charged, self.relation, self.permutation_invariant, narrowed=False, additions=more
        )

    def _sum_sensitivity(self, bound: Array | float) -> Array | float:
        return self.sampler.sum_scale(bound, self.relation, self.rounding_error)

    def _mean_sensitivity(self, bound: Array | float) -> Array | float:
        return self._sum_sensitivity(bound) / self.divisor

    def _sum_noise_std(self, bound: Array | float) -> Array | float:
        # The printed std of the mean times the divisor; dividing by it is post-processing.
        return self.noise_multiplier * (self._mean_sensitivity(bound) * self.divisor)

    def _clipped_by(self, clip: Callable[..., Any], **numbers: Any) -> Any:
        """The clipped sum of the data term, whose rows are added as the relation asks."""
        order = self.permutation_invariant
        return clip(self.objective.data_term, permutation_invariant=order, **numbers)

    def _drawn(self, key: Array, records: Records) -> tuple[Records, Mask]:
        # A key of its own: noise from the same key would depend on the records that were drawn.
        return self.sampler.draw(derive(key, _BATCH, 0), records)


class MeanQuery(Query):
    """A question whose answer is the mean of one sum, in the shape that the sum has."""

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> Array:
        return noisy[0] / self.divisor

    def noisy_parts(self, answer: Array) -> tuple[Array, ...]:
        return (answer * self.divisor,)


def cond_under_vmap(
    asked: Array, compute: Callable[[Params], PyTree], params: Params, otherwise: PyTree
) -> PyTree:
    """Returns ``compute(params)`` where ``asked``, else ``otherwise``, which reads no record.

    Args:
      asked: bool, shape ().
      compute: reads the records.
      params: where.
      otherwise: a pytree like the answer.

    >>> print(cond_under_vmap(jnp.array(True), jnp.sin, jnp.zeros(()), jnp.ones(())))
    0.0
    """

    def once(_: Array, carry: tuple[Params, PyTree]) -> tuple[Params, PyTree]:
        point, _ = carry
        # What a loop does not change XLA computes before it, hence always: so a pass changes this.
        return jax.tree.map(jnp.zeros_like, point), compute(point)

    # No pass or one: of a branch both sides would be computed where runs are batched.
    passes = jnp.asarray(asked).astype(jnp.int32)
    return lax.fori_loop(0, passes, once, (params, otherwise))[1]
