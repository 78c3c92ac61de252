"""The command line: ``dpjax run``, ``dpjax calibrate``, ``dpjax data``."""

from dpjax.cli.main import main

__all__ = ["main"]
