"""One thread for NumPy's linear algebra in the workers of a test session, which inherit it.

Its threads wait for each other in a loop: beside other workers, which keep the cores busy, an
eigendecomposition of 300 x 300 numbers takes ten times the processor time. A session of one process
has its cores to itself, and NumPy, which plugins of pytest import, before this is read.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
