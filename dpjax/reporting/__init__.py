"""``report``: one page in HTML about a trained model, its guarantee and its coefficients."""

from dpjax.reporting.facts import Facts, facts_of
from dpjax.reporting.page import report

__all__ = ["Facts", "facts_of", "report"]
