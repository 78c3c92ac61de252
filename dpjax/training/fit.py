"""``fit``: private training of a flax network, or a function, with an optax optimizer."""

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import Algorithm, dp_optimizer, with_canaries
from dpjax.datasets import Dataset, Preprocessing
from dpjax.display.cards import ceil
from dpjax.distributed import Sharded, mesh_of
from dpjax.driver import Watch, holds_run, root_key, run
from dpjax.driver.checkpoint import Folder
from dpjax.driver.resume import RunFiles
from dpjax.objectives import Objective
from dpjax.placement.processes import team
from dpjax.results import Solution
from dpjax.training.dry_run import dry_run as of_shapes
from dpjax.training.evaluation import Evaluator, LossOfOutputs, check_closures, named, objective_of
from dpjax.training.network import Network, network
from dpjax.training.start import tree_of
from dpjax.training.table import example_shape, given, records_of, sizes_of
from dpjax.training.trained import Trained

Factory = Callable[..., Algorithm]


class Options(TypedDict, total=False):
    """Options that ``fit`` passes to ``dp_optimizer`` or another factory; described there."""

    output: str
    average_decay: float | None
    max_batch_size: int | None
    per_layer: bool
    memory_limit: int | None
    accountant: str


def fit(
    model: Any,
    loss: str | LossOfOutputs,
    data: Dataset | tuple[PyTree, PyTree],
    budget: PrivacyBudget,
    optimizer: optax.GradientTransformation | Factory,
    *,
    key: Array | None = None,
    seed: int | None = None,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    clip_norm: float = 1.0,
    params: Params | None = None,
    trainable: Any = None,
    batched: bool | None = None,
    bounds: tuple[float, float] | None = None,
    held_out: Dataset | tuple[PyTree, PyTree] | None = None,
    evaluate_every: float = 1.0,
    metrics: Mapping[str, LossOfOutputs] | None = None,
    exact: bool = False,
    regularizer: Any = None,
    augment: Callable[[Any, Array], Any] | None = None,
    views: int | None = None,
    groups: Any = None,
    max_records: int | None = None,
    unit_type: str | None = None,
    data_size: int | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
    ledger: Ledger | str | os.PathLike | None = None,
    label: str | None = None,
    part: str | None = None,
    canaries: int | None = None,
    dry_run: bool = False,
    **options: Unpack[Options],
) -> Trained:
    """Trains a network with differential privacy, with any optax optimizer.

    Batches are drawn and full epochs run on the device. Dropout is on in training, with a mask for
    each record and step, and off elsewhere. The optimizer sees only the noisy mean of clipped
    gradients, so its update is post-processing.

    Args:
      model: a flax nnx module, which is not changed; a flax linen module; or a function
        ``(params, x) -> outputs`` of one example. One that draws is ``(params, x, key)``, where
        ``key`` is None unless it is in training.
      loss: ``loss(outputs, y) -> scalar`` of one example, or ``"cross_entropy"`` of logits and a
        class from 0 up, below their number; of two logits, -1 stands for 0. Any other label makes
        a null record, which contributes nothing; labels of words need
        ``dpjax.datasets.encode_labels``. ``"bce"`` is the same of one logit, and ``"mse"`` the mean
        squared error.
      data: a ``Dataset`` or arrays ``(x, y)``, one record per row, or either from
        ``distributed.shard``. Images of integers need ``bounds``.
      budget: privacy budget of the full run.
      optimizer: such as ``optax.adam(1e-3)``; its schedule counts steps. A factory of dpjax for
        batches is accepted too: ``functools.partial(dpjax.dp_adam, step_size=1e-3)``.
      key: ``dpjax.random_key()``; without key and seed the run in ``checkpoint`` is resumed.
      seed: in place of a key, for research that can be repeated and is not for release.
      batch_size: expected number of records of a Poisson batch; sums are divided by it.
      epochs: average number of times a record is drawn: steps = round(epochs n / batch_size).
      steps: T, in place of ``epochs``.
      clip_norm: bound on the l2 norm of one record's gradient, over all that is trained.
      params: public starting point: a tree of arrays like the model's, what ``fit`` or ``load``
        returned, or the path of a file of ``save``, of ``.safetensors``, or of a folder by orbax.
        Without it an nnx module starts at its own, and linen initialises parameters from a key
        derived from the root key. For a linen module with other collections, all variables, as of
        ``module.init``. Half precision is trained in float32, and rounded for each call.
      trainable: which parameters are trained, by default all: an nnx filter (``nnx.LoRAParam``,
        ``nnx.PathContains("head")``, a Variable type of yours), or a function
        ``(path, leaf) -> bool`` of a tuple of names, also for linen and trees of arrays. The others
        are constants of the model, of any dtype: no noise, no part in norms. Variables of nnx that
        are no ``nnx.Param`` are trained only where the filter asks for their type.
      batched: whether the model expects a leading batch axis; it then receives batches of one. By
        default a module does if its outputs have that axis whenever its inputs do, and a function
        does not.
      bounds: declared (low, high) of all features, such as (0, 255): clamped, then scaled to
        [0, 1], record by record.
      held_out: records ``(x, y)`` outside the training data, on which iterates are evaluated, such
        as ``(data.test_x, data.test_y)``.
      evaluate_every: epochs between two evaluations; the last iterate is always evaluated.
      metrics: names and functions ``(outputs, y) -> number`` of one example, whose means are
        measured beside the loss and, for cross-entropy, the accuracy.
      exact: whether to evaluate on the training records too, which is NOT PRIVATE.
      regularizer: see ``Objective``; of the trained parameters, after the noise.
      augment: ``augment(x, key) -> x``, a random change of one record's features as they are given,
        such as a shift of an image, anew in each step.
      views: how many such changes of a record a step averages the loss over, before it is clipped.
      groups: (n,) whose each record is, as ``by`` of ``datasets.group``: all records of a person
        are then one example, whose loss is the mean of theirs. Data that are grouped, by ``group``
        or ``load(unit=)``, need neither this nor ``max_records``, and their guarantee calls the
        unit by its name, not a person.
      max_records: the declared largest number of records of one person, which ``groups`` needs.
      unit_type: what ``groups`` are, ``"number"`` or ``"text"``, see ``datasets.group``.
      data_size: the declared public n, of persons where there are groups; required under
        ``add_or_remove_one``, else the data's rows.
      progress: whether a bar is shown, see ``run``, with the epsilon of the full declared run.
      checkpoint: folder to save the run in, see ``run``, and its table of evaluations.
      ledger: a ``Ledger`` or its file, which the run is booked in before it asks the data.
      label: your word for the data, for the ledger; by default the data set's name.
      part: the declared part of the ledger's data that ``data`` are, see ``Ledger.of``.
      canaries: how many made-up records the run attacks itself with, see ``run``; n counts them.
      dry_run: train and spend nothing, and return a ``DryRun``, without a key: noise, steps, and
        the memory of a step, which is compiled for that.
      **options: ``output="random"`` for an iterate drawn uniformly beforehand, where the run ends,
        or ``"average"`` to publish and evaluate an average of iterates, of ``average_decay``;
        ``max_batch_size``, ``per_layer``, ``memory_limit`` and ``accountant``: all as in
        ``dp_optimizer``, or the given factory.

    Returns:
      A ``Trained``: the ``Solution``, predictions, and tables of evaluations; or a ``DryRun``.

    Raises:
      ValueError: before anything is spent, for arguments that do not fit together; parameters of
        another model, or not floating; a rank of LoRA above the layer's width; a model that
        writes state, draws random numbers in evaluation, or mixes the examples of a batch, naming
        the layer; a model or loss that calls Python (``jax.pure_callback`` and the like), or holds
        an array with a row for each record; an optimizer that adds noise or takes several
        micro-batches; or as ``run``.
      ResumeMismatch: as ``run``; another optimizer, learning rate, model or loss is detected.

    Privacy: the guarantee of ``solution.event`` covers every iterate. It does not cover the
      held-out records: ``exact_held_out``, and any choice based on it, is NOT PRIVATE with regard
      to them. It takes model, loss, regularizer, ``trainable`` and starting point, also of what
      is not trained, to be public: numbers that were computed from the training records, such as
      class frequencies or a pretrained start on the same data, are used without noise and are not
      covered. Records that ``params`` were trained on privately have both guarantees, composed.

    Reference: Abadi et al. (2016), algorithm 1; Zhang et al. (2021), algorithm 1, for the random
      iterate.

    >>> import dpjax, jax.numpy as jnp, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> trained = fit(
    ...     lambda w, x: x @ w, "cross_entropy", (x, x[:, 0] > 0), PrivacyBudget(3.0, 1e-4),
    ...     optax.sgd(0.5), key=dpjax.random_key(), batch_size=50, epochs=4,
    ...     params=jnp.zeros((2, 2)))
    >>> int(trained.solution.steps), trained.predict(x).shape, trained.epsilon(1e-4) <= 3.0
    (16, (200,), True)
    """
    loss, (data, mesh) = named(loss), mesh_of(data)
    data, records, examples = given(data, groups, max_records, unit_type, bounds, team(mesh).size)
    sizes = sizes_of(examples, budget, data_size, batch_size, epochs, steps)
    # Any start does for a dry run, which has shapes alone.
    key, seed = (None, 0) if dry_run else (key, seed)
    example, root = example_shape(records), _root(key, seed, checkpoint, mesh)
    net, params = network(model, example[0], tree_of(params), root, trainable, batched, bounds)
    changes = augment, views
    objective, measures = objective_of(net, loss, params, example, regularizer, metrics, *changes)
    check_closures(objective, params, example, _public_rows(examples, budget, sizes), net.fixed)
    lifted = objective if examples is records else objective.of_units()
    algorithm = _algorithm(optimizer, lifted, budget, params, clip_norm, sizes, options, canaries)
    sets = _evaluated(records, exact, held_out, bounds)
    files = RunFiles(checkpoint, ledger, label, part)
    if dry_run:
        return of_shapes(algorithm, data, params, files)  # pyright: ignore[reportReturnType]
    epoch = sizes["data_size"] / sizes["batch_size"]
    folder = checkpoint if team(mesh).leads else None  # of several processes one writes the table
    evaluator = Evaluator(net, measures, sets, epoch, folder, root, params)
    how: Any = {"key": key, "seed": seed, "params": params, "progress": progress}
    how |= {"watch": _watch(algorithm, evaluator, epoch, evaluate_every)} | files._asdict()
    solution = run(algorithm, data if mesh is None else Sharded(data, mesh), **how)
    return _trained(net, loss, evaluator, solution)


def _evaluated(records: Any, exact: bool, held_out: Any, bounds: Any) -> dict[str, Any]:
    sets = {"training": records} if exact else {}
    if held_out is not None:
        sets["held_out"] = records_of("held_out", held_out, bounds, like=records)
    return sets


def _public_rows(examples: PyTree, budget: PrivacyBudget, sizes: dict[str, int]) -> int:
    # Where n is private it is the declared number: an error must not reveal it.
    private = budget.relation == "add_or_remove_one"
    return sizes["data_size"] if private else len(jax.tree.leaves(examples)[0])


def _trained(net: Network, loss: Any, evaluator: Evaluator, solution: Solution) -> Trained:
    for remark in solution.remarks:
        warnings.warn(remark, RuntimeWarning, stacklevel=3)
    # The last iterate is measured whether or not its step was due.
    evaluator(int(solution.steps), solution.params)
    # So that code that loads the parameters can scale inputs as the network does.
    if net.bounds is not None:
        scale = Preprocessing((), pixels=net.bounds)
        solution = dataclasses.replace(solution, preprocessing=scale)
    tables = map(evaluator.table, ("held_out", "training"))
    # All parameters from here on: what is published is the whole model.
    held: dict[str, Any] = {n: getattr(solution, n) for n in ("params", "certified_params")}
    whole = {name: net.merged(part) for name, part in held.items() if part is not None}
    solution = dataclasses.replace(solution, **whole)
    net = dataclasses.replace(net, fixed=None)
    return Trained(solution, net, loss in ("cross_entropy", "bce"), *tables)


def _root(
    key: Array | None, seed: int | None, checkpoint: str | os.PathLike | None, mesh: Mesh | None
) -> Callable[[], Array]:
    """What returns the root key: that of a resumed run, for ``run`` refuses another."""

    # Called late, if at all: to initialise a linen module, and to store evaluations.
    def root() -> Array:
        if checkpoint is not None and holds_run(checkpoint):
            with Folder(checkpoint) as folder:
                stored = folder.read()
            assert stored is not None
            return stored.key
        return root_key(key, seed)

    if team(mesh).size == 1:
        return root
    # All processes must start at the same parameters, so the first sends its key.
    words, implementation = team(mesh).from_first(
        lambda: (np.asarray(jax.random.key_data(root())), str(jax.random.key_impl(root())))
    )
    return lambda: jax.random.wrap_key_data(jnp.asarray(words), impl=implementation)


def _algorithm(
    optimizer: Any,
    objective: Objective,
    budget: PrivacyBudget,
    params: Params,
    clip_norm: float,
    sizes: dict[str, int],
    options: Options,
    canaries: int | None,
) -> Algorithm:
    dimension = sum(leaf.size for leaf in jax.tree.leaves(params))
    factory = cast(Factory, optimizer)
    # optax's transformations are tuples and cannot be called; factories can.
    if not callable(optimizer):
        factory = functools.partial(dp_optimizer, optimizer=optimizer, params=params)
    arguments: dict[str, Any] = {"dimension": dimension, "clip_norm": clip_norm, **sizes, **options}
    # Bound first: a ``TypeError`` from inside a factory says nothing of the arguments.
    try:
        inspect.signature(factory).bind(objective, budget, **arguments)
    except TypeError as error:
        raise ValueError(
            "optimizer must be an optax transformation such as optax.adam(1e-3), or a factory like "
            f"dpjax.dp_adam that takes batches, got {_validate.shown(optimizer)}: {error}."
        ) from error
    if canaries is None:
        return factory(objective, budget, **arguments)
    arguments["data_size"] += _validate.positive_int("canaries", canaries)
    return with_canaries(factory(objective, budget, **arguments), canaries)


def _watch(algorithm: Algorithm, evaluator: Evaluator, epoch: float, epochs: float) -> Watch:
    spent, steps = cast(float, algorithm.epsilon()), int(algorithm.steps)
    title = f"{algorithm.title}, epsilon {ceil(spent, 3)} in all"
    # At most one evaluation a step.
    every = max(1.0, _validate.positive("evaluate_every", epochs) * epoch)
    if not evaluator.sets:
        return Watch(frozenset(), evaluator, title)
    # Each is rounded by itself: a rounded interval would drift over many epochs.
    due = {round(k * every) for k in range(1, int(steps / every) + 1)}
    return Watch(frozenset(due | {steps}), evaluator, title)
