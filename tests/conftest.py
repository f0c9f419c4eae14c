"""What every test shares: one thread, fixed randomness, the folder of public data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

# The tests themselves run in parallel, so each gets one thread: libraries loaded from here on and child processes read
# these variables, libraries already loaded are told below.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

settings.register_profile("keyless", derandomize=True, deadline=None, database=None)
settings.load_profile("keyless")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    with threadpool_limits(limits=1):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """A random generator that starts from the same seed in every test."""
    return np.random.default_rng(20211015)


@pytest.fixture(scope="session")
def data_home() -> Path:
    """The folder of public data sets, which are not part of the project."""
    folder = os.environ.get("KEYLESS_DATA_HOME")
    if folder is None:
        pytest.skip("needs public data: set KEYLESS_DATA_HOME to the folder that holds ml-100k/ and faces/")
    if not Path(folder).is_dir():
        pytest.skip(f"needs public data: KEYLESS_DATA_HOME={folder} is not a folder")
    return Path(folder)
