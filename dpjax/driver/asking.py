"""What a step may ask of the data, checked while tracing."""

import collections
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from dpjax._typing import Array, Params, PyTree
from dpjax._wide import wide_dtype
from dpjax.algorithms import Algorithm
from dpjax.driver.configuration import is_same
from dpjax.mechanisms import derive
from dpjax.mechanisms.keys import purpose_word
from dpjax.oracles import Query, bind, check_query

# Purposes of the training's key that are not those of a query: their keys are used for other draws.
_TAKEN = ("order", "step")
# Whose classes do not change while they are used.
_FIXED = {"dpjax", "jax", "jaxlib", "numpy", "builtins"}


class BoundAlgorithm(NamedTuple):
    """An algorithm, the key and the data it may ask, ready to run."""

    algorithm: Algorithm
    records: PyTree
    key: Array


class Asking:
    """The ``ask`` of one step, or of the end of a run: it answers each query once, where it stands.

    The end has a step number that no step has.

    Privacy: the key of an answer is made of the query's name and the step, so a second answer in
      the step would have the same noise, and their difference none.
    """

    def __init__(self, bound: BoundAlgorithm, step: Array):
        self._bound, self._step = bound, step
        # The trace that runs the step's own body; a loop, vmap or cond inside it has another one.
        self._place = get_opaque_trace_state()
        self.asked: list[Asked] = []
        self.evidence: list[Array] = []

    @property
    def key(self) -> Array:
        """The step's own key, for public coins; no noise of an answer is drawn with it."""
        return derive(self._bound.key, "step", self._step)

    def __call__(self, query: Query, params: Params, **public: Any) -> PyTree:
        """Returns the noisy answer to ``query``.

        ``params`` and ``public`` are public or were released before.
        """
        self._check(query)
        condition = query.is_asked(**public)
        self.asked.append(Asked(query.name, condition is not None))
        own = query.step_key(self._bound.key, self._step, **public)
        answer = self._answer(query, own, params, public)
        counts = 1.0 if condition is None else jnp.asarray(condition, jnp.float32)
        evidence = query.evidence(answer, params, **public)
        # A step that was not asked has noise 0, which is no evidence.
        self.evidence += [jnp.array(pair, jnp.float32) * counts for pair in evidence]
        # Post-processing: the dtype follows the parameters, whatever that of the data.
        wide = wide_dtype(params)
        return jax.tree.map(
            lambda leaf: leaf.astype(wide) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
            answer,
        )

    def _answer(self, query: Query, key: Array, params: Params, public: dict[str, Any]) -> PyTree:
        return query.answer(key, self._bound.records, params, **public)

    def _check(self, query: Query) -> None:
        queries = self._bound.algorithm.queries
        if not isinstance(query, Query):
            raise ValueError(
                f"ask(query, params) takes one of algorithm.queries, got {type(query).__name__}: "
                "pass the query itself, not its name or a key."
            )
        kind = type(query).__name__
        # A copy whose numbers are a query's own is that query.
        if not any(query is own or is_same(query, own) for own in queries):
            raise ValueError(
                f"{kind} is not among algorithm.queries, so algorithm.event does not count its "
                "answer: return this very object from the property queries."
            )
        words = [purpose_word(name) for name in (*_TAKEN, *(own.name for own in queries))]
        if words.count(purpose_word(query.name)) > 1:
            raise ValueError(
                f"{kind} has the name {query.name!r}, and another query or the driver one of the "
                "same CRC-32: the key of the noise is made of it, and noise would be repeated. "
                "Give each query a name of its own."
            )
        if any(asked.name == query.name for asked in self.asked):
            raise ValueError(
                f"{kind} is asked twice in one step (or in finalize and certify, which count as "
                "one): both answers would have the same noise, and their difference none. Ask "
                "once and keep the answer in the state; for two answers a step, declare two "
                "queries of different names, each with its release in algorithm.event."
            )
        if get_opaque_trace_state() != self._place:
            raise ValueError(
                f"{kind} is asked from inside a loop, jit, vmap, cond or other transformation in "
                "the step: there one question may be asked many times, with the same noise, and "
                "more often than algorithm.event counts. Ask in the step itself and hand the "
                "answer in; where not every step needs an answer, ask with asked=CONDITION."
            )


def bind_records(algorithm: Algorithm, examples: PyTree) -> PyTree:
    """Returns the data in the form the queries read; one copy, since they share an objective."""
    # Rows that any query draws stay as they are, also where the first one reads all of them.
    queries = algorithm.queries
    return bind(next((q for q in queries if not q.closed_form), queries[0]), examples)


def bind_with_key(algorithm: Algorithm, records: PyTree, key: Array) -> BoundAlgorithm:
    """Returns the algorithm with bound records, arranged as its sampler reads them."""
    sampler = algorithm.queries[0].sampler
    return BoundAlgorithm(algorithm, sampler.prepare(derive(key, "order", 0), records), key)


class Asked(NamedTuple):
    """A question, by the name of its query."""

    name: str
    conditional: bool
    """Whether records are read only where a condition holds, see ``Query.is_asked``."""
    noise_draws: int = 0
    """How many numbers of Gaussian noise an answer has, where that is counted."""


class Questions(NamedTuple):
    """What an algorithm asks at every step, and once, before the first or after the last."""

    step: tuple[Asked, ...]
    once: tuple[Asked, ...]


def questions(
    algorithm: Algorithm, examples: PyTree, params: Params, asking: type[Asking] = Asking
) -> Questions:
    """Returns what is asked, found by tracing one step and the end; nothing is computed."""
    found = []

    def trace(algorithm: Algorithm, records: PyTree, params: Params, key: Array) -> Any:
        bound = bind_with_key(algorithm, bind_records(algorithm, records), key)
        first, ask, last = (asking(bound, jnp.array(at)) for at in (-1, 0, algorithm.max_steps))
        state = algorithm.begin(first.key, algorithm.init(params), first)
        state, _ = algorithm.step(ask.key, state, ask)
        state = algorithm.finalize(last.key, state, last)
        certified = algorithm.certify(last.key, state, last, False)
        # Noted on the side, because a traced function can return arrays only.
        found.append(Questions(tuple(ask.asked), (*first.asked, *last.asked)))
        return state, certified

    # Any key does: only shapes are traced.
    key = jax.eval_shape(lambda: jax.random.key(0))
    jax.eval_shape(trace, algorithm, examples, params, key)
    return found[-1]


class _Counting(Asking):
    """Notes how many numbers of Gaussian noise an answer of each query has."""

    def _answer(self, query: Query, key: Array, params: Params, public: dict[str, Any]) -> PyTree:
        # As ``Query.answer`` where no condition holds, whose sums are traced twice and more.
        parts = query._exact_parts(key, self._bound.records, params, **public)
        answer = query._perturbed(key, parts, params, **public)
        pairs = zip(parts, (law for _, law in query.noises(**public)), strict=True)
        draws = sum(math.prod(part.shape) for part, law in pairs if law.is_charged)
        self.asked[-1] = self.asked[-1]._replace(noise_draws=draws)
        return answer


def check_questions(algorithm: Algorithm, examples: PyTree, params: Params) -> None:
    """Raises if an algorithm or query does what it may not, before anything is spent."""
    for query in algorithm.queries:
        check_query(query)
    leaves, structure = jax.tree.flatten((algorithm, examples, params))
    # Another's class may have changed since it was traced, as in a notebook. No node is a leaf.
    rooms: set[str] = set()

    def note(node: Any) -> bool:
        rooms.add(type(node).__module__.split(".")[0])
        return False

    jax.tree.leaves(algorithm, is_leaf=note)
    count = _counted if rooms <= _FIXED else _counted.__wrapped__
    # Weak types count: without them the traced step could promote to other dtypes.
    asked = count(structure, tuple(map(jax.typeof, leaves)))
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(algorithm)):
        with jax.ensure_compile_time_eval():  # an event has numbers, also inside ``jit``
            check_counts(algorithm, asked)


# What is asked follows from structure, shapes and dtypes, so that a sweep is traced once.
@functools.lru_cache(maxsize=256)
def _counted(structure: Any, shapes: tuple[Any, ...]) -> Questions:
    return questions(*structure.unflatten(shapes), asking=_Counting)


def check_counts(algorithm: Algorithm, asked: Questions) -> None:
    """Raises if more is asked, or more noise is drawn, than ``algorithm.event`` counts.

    How often a question asked on a condition is answered cannot be seen here: there the event's
    count is believed, but not how many numbers of noise an answer has.
    """
    event, booked = algorithm.event, collections.Counter[str]()
    for release in event.releases:
        for part in release.parts():
            booked[part.name] += part.count
    # The loop ends at the smaller of the two, see ``loop._last``.
    steps = min(int(algorithm.steps), algorithm.max_steps)
    answers, most, draws = collections.Counter[str](), collections.Counter[str](), 0
    conditional = {one.name for one in (*asked.step, *asked.once) if one.conditional}
    for every, times in ((asked.step, steps), (asked.once, 1)):
        for one in every:
            answers[one.name] += 0 if one.conditional else times
            most[one.name] = max(most[one.name], one.noise_draws)
    for query in algorithm.queries:
        times = answers[query.name]
        # Of answers on a condition there are as many as the event says, each as long as traced.
        counted = booked[query.name] if query.name in conditional else times
        draws += query.most_answers(counted) * most[query.name]
        # The query says what so many answers release: those of a single pass are one release.
        needed = collections.Counter[str]()
        for release in query.event(times).releases if times else ():
            needed[release.name] += release.count
        for name, count in needed.items():
            if count > booked[name]:
                raise ValueError(
                    f"{type(query).__name__} is asked {times} times in {steps} steps and "
                    f"at their end, but algorithm.event counts {booked[name]} releases of "
                    f"{name!r}: the guarantee would not hold. Let the event of "
                    f"{type(algorithm).__name__} count {count}, and calibrate with it."
                )
    if draws > (charged := event.noise_draws):
        raise ValueError(
            f"{type(algorithm).__name__} adds {draws:,} numbers of noise, and its epsilon is "
            f"charged for {charged:,}: make its queries with Setting(..., dimension=P) for P "
            "parameters, or say how many an answer has in noise_draws, of a query or a Release."
        )
