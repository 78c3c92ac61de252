"""Rebuilds ``dpjax/datasets/randhie.npz`` from the statsmodels wheel; for maintainers.

python -m pip install statsmodels && python tests/tools/make_randhie.py
"""

import hashlib
import pathlib
import sys
import zipfile

import numpy as np

TARGET = pathlib.Path(__file__).parents[2] / "dpjax" / "datasets" / "randhie.npz"
PROVENANCE = (
    "RAND Health Insurance Experiment: 20,190 person-years, subset of Cameron and Trivedi, "
    "Microeconometrics: Methods and Applications, Cambridge 2005.",
    "Taken unmodified from statsmodels.datasets.randhie, whose terms for it read: "
    '"This is in the public domain."',
    'statsmodels adds: "The data was collected by the RAND corporation as part of the Health '
    'Insurance Experiment (HIE)."',
)


def arrays():
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    features = [column for column in frame.columns if column != "mdvis"]
    return {
        "columns": np.array(features),
        "x": frame[features].to_numpy(np.float64),
        "mdvis": frame["mdvis"].to_numpy(np.int16),
        "provenance": np.array(PROVENANCE),
    }


def write(path):
    # numpy.savez would stamp the time of day into the archive, and so into its checksum.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays().items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    write(target)
    print(target, hashlib.sha256(target.read_bytes()).hexdigest())
