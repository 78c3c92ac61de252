"""The command line: ``dpjax run``, ``dpjax calibrate``, ``dpjax data``, ``dpjax ledger``."""

from dpjax.cli.entry import main

__all__ = ["main"]
