"""``report``: one page in HTML about a trained model, its guarantee and its coefficients."""

from dpjax.reporting.frame import Picture, Section
from dpjax.reporting.page import Facts, facts_of, report

__all__ = ["Facts", "Picture", "Section", "facts_of", "report"]
