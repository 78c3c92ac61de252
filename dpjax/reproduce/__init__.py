"""NOT PRIVATE: the papers' tables and figures on public benchmark data, with ours beside theirs."""

from dpjax.reproduce import exact, trust_region
from dpjax.reproduce.paper import PAPERS, Plan, plan, redraw, reproduce

__all__ = ["PAPERS", "Plan", "exact", "plan", "redraw", "reproduce", "trust_region"]
