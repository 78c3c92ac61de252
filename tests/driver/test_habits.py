"""Small habits: what a wrong file, a weak budget, a loss by name and a finished run say."""

import warnings

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.training import evaluation

BUDGET = dpjax.PrivacyBudget(3.0, 1e-4)
X = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.float32)


class Net(nn.Module):
    outputs: int = 1

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(x)


def fit(loss, y=Y, outputs=1):
    how = {"seed": 0, "batch_size": 100, "steps": 20, "held_out": (X, Y)}
    return dpjax.fit(Net(outputs), loss, (X, y), BUDGET, optax.adam(0.1), **how)


def test_binary_cross_entropy_of_one_logit_predicts_classes():
    trained = fit("binary_crossentropy")
    right = np.mean(np.asarray(trained.predict(X)) == Y)
    assert right > 0.8 and trained.exact_held_out["accuracy"][-1] == pytest.approx(right)
    for y, logit in ((0.0, -1.5), (1.0, -1.5), (1.0, 3.0)):
        expected = optax.sigmoid_binary_cross_entropy(jnp.array(logit), jnp.array(y))
        found = evaluation._binary_loss(jnp.array([logit]), jnp.array(y))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "y", "outputs", "words"),
    [
        ("mse", Y, 2, "an output for each label"),
        ("bce", Y, 2, "one logit"),
        ("MSE", Y, 1, "did you mean 'mse'"),
        ("huber", Y, 1, "unknown loss"),
        ("mse", {"a": Y}, 1, "one array of labels"),
    ],
)
def test_a_loss_by_name_that_does_not_fit_is_refused(loss, y, outputs, words):
    with pytest.raises(ValueError, match=words):
        how = {"seed": 0, "batch_size": 100, "steps": 2}
        dpjax.fit(Net(outputs), loss, (X, y), BUDGET, optax.sgd(0.1), **how)


def test_a_budget_that_protects_little_warns_in_the_command_lines_words():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        dpjax.PrivacyBudget(100, 0.1)
        dpjax.PrivacyBudget(1.0, 1e-6)
    words = [str(one.message) for one in found]
    assert ["0.1 is not below 1/n" in words[0], "gives little protection" in words[1]] == [True] * 2
    assert len(words) == 2 and found[0].filename == __file__
    assert words[1] in dpjax.accounting.remarks(100.0, 0.1, 1000)


def test_a_wrong_file_is_named_as_such(tmp_path):
    table, archive = tmp_path / "t.csv", tmp_path / "t.npz"
    table.write_text("a,b\n1,2\n")
    np.savez(archive, x=np.ones(3))
    for path, words in ((table, "not a ledger"), (archive, "not a ledger"), (tmp_path, "a folder")):
        for read in (dpjax.Ledger.read, dpjax.Ledger.open):
            with pytest.raises(ValueError, match=words):
                read(path)
    assert table.read_text() == "a,b\n1,2\n"
    with pytest.raises(FileNotFoundError, match="a folder"):
        dpjax.load(tmp_path)
    with pytest.raises(ValueError, match="pass a Solution"):
        dpjax.save(tmp_path / "model", BUDGET)


def test_epsilon_so_far_ends_at_that_of_the_run_and_a_plot_is_returned(capsys, tmp_path):
    objective = dpjax.objectives.logistic()
    how = {"data_size": 400, "dimension": 3, "steps": 8}
    algorithm = dpjax.dp_gradient_descent(objective, BUDGET, **how)
    x = X / np.linalg.norm(X, axis=1, keepdims=True)
    solution = dpjax.run(algorithm, (x, jnp.asarray(Y)), seed=0, progress=True)
    assert "epsilon 3 so far" in capsys.readouterr().err
    assert len(solution.plot(tmp_path / "p.png").axes) == 2 and (tmp_path / "p.png").stat().st_size
    assert solution.plot().axes
