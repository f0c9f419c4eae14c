"""Couplings and eigenvectors for many problems at once: kernels on a card, plain torch elsewhere.

Both devices follow the same rules: Sinkhorn that of `keyless.transport.sinkhorn_of_ones` from a cold start, and the
eigenvectors of Gram matrices are exact to rounding where their eigenvalues exceed a threshold. This module needs torch
alone, so that it runs where keyless is not installed.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("m3o_card.cu")
CHECK_EVERY = 10  # iterations between two looks at the residual, as in keyless.transport
LARGEST = 1e60  # scalings are absorbed into the potentials before they grow beyond this, as in keyless.transport
MOST_SWEEPS = 40  # of the kernel
DIFFUSENESS, CHANGE, LARGEST_CHANGE, TRANSPORT_COST, ENTROPIC_COST = range(5)
"""Columns of the statistics of `couple_`."""


def couple_(
    cost: Tensor, epsilon: Tensor, tolerance: Tensor, active: Tensor, coupling: Tensor, *, max_iter: int
) -> tuple[Tensor, Tensor]:
    """Put the new couplings in the place of those of the step before; return statistics and counts of iterations.

    Args:
        cost: tables × n × n.
        epsilon: one ε per table.
        tolerance: one bound per table on the root mean square of the row sums' errors.
        active: which tables to look at; the others keep their couplings, and their statistics are zero.
        coupling: tables × n × n; changed.
        max_iter: at most so many iterations.

    Returns:
        Statistics, tables × 5, in the order of the constants above, and iterations of each table.
    """
    tables, n = cost.shape[:2]
    statistics = torch.zeros(tables, 5, dtype=torch.float64, device=cost.device)
    iterations = torch.zeros(tables, dtype=torch.int32, device=cost.device)
    if cost.is_cuda:
        which = active.int()
        found = _library().sinkhorn(
            *_pointers(cost, epsilon, tolerance, which, coupling, statistics, iterations),
            tables,
            n,
            max_iter,
            _stream(),
        )
        _check(found, "sinkhorn")
        return statistics, iterations
    for table in range(tables):
        if bool(active[table]):
            fresh, potentials, count = _sinkhorn(cost[table], float(epsilon[table]), float(tolerance[table]), max_iter)
            change = fresh - coupling[table]
            sums = fresh.sum(dim=1)
            linear = sums @ potentials[0] + fresh.sum(dim=0) @ potentials[1]
            statistics[table] = torch.stack(
                [
                    (fresh.amax(dim=1) - 1).abs().mean(),
                    (change * change).sum() / (2 * n),
                    change.abs().max(),
                    (cost[table] * fresh).sum(),
                    linear - epsilon[table] * sums.sum(),
                ]
            )
            coupling[table] = fresh
            iterations[table] = count
    return statistics, iterations


def _sinkhorn(  # noqa: PLR0912
    cost: Tensor, epsilon: float, tolerance: float, max_iter: int
) -> tuple[Tensor, tuple[Tensor, Tensor], int]:
    ones = torch.ones(len(cost), dtype=cost.dtype)
    alpha, beta = cost.amin(dim=1), torch.zeros_like(ones)
    kernel = ((alpha[:, None] + beta - cost) / epsilon).exp()
    u, v, count = ones, ones, 0
    leap = min(CHECK_EVERY, max_iter)
    for _ in range(leap):
        u = 1 / (kernel @ v)
        v = 1 / (u @ kernel)
    if bool(((u * LARGEST > 1) & (v * LARGEST > 1) & (u < LARGEST) & (v < LARGEST)).all()):
        count = leap
    else:
        u, v = ones, ones
    while True:
        look = count < 3 or count % CHECK_EVERY == 0
        sums = kernel @ v
        rows_lost = look and not _sound(sums)
        fresh = 1 / sums
        if rows_lost:
            exact = -epsilon * torch.logsumexp((beta + epsilon * v.log() - cost) / epsilon, dim=1)
        done = count >= max_iter
        if count and (done or count % CHECK_EVERY == 0):
            if rows_lost:
                bound = math.log(LARGEST)
                ratio = ((alpha + epsilon * u.log() - exact) / epsilon).clip(-bound, bound).exp()
            else:
                ratio = u / fresh
            if done or float((ratio - 1).square().mean().sqrt()) <= tolerance:
                break
        columns_lost = rows_lost
        if not rows_lost:
            sums = fresh @ kernel
            columns_lost = look and not _sound(sums)
            if not columns_lost:
                u, v = fresh, 1 / sums
        if columns_lost:
            alpha = exact if rows_lost else alpha + epsilon * fresh.log()
            beta = -epsilon * torch.logsumexp((alpha[:, None] - cost) / epsilon, dim=0)
            kernel = ((alpha[:, None] + beta - cost) / epsilon).exp()
            u, v = ones, ones
        count += 1
        if count >= 3:
            until = min(max_iter, -(-count // CHECK_EVERY) * CHECK_EVERY)
            for _ in range(until - count):
                u = 1 / (kernel @ v)
                v = 1 / (u @ kernel)
            count = max(until, count)
    coupling = kernel * u[:, None] * v
    return coupling, (alpha + epsilon * u.log(), beta + epsilon * v.log()), count


def _sound(sums: Tensor) -> bool:
    return bool(((sums > 1 / LARGEST) & (sums / LARGEST < 1)).all())


def eigenvectors(gram: Tensor, threshold: Tensor, active: Tensor, *, way: str = "") -> tuple[Tensor, Tensor, Tensor]:
    """Return eigenvalues of symmetric, non-negative matrices, and eigenvectors as rows, in any order.

    The third answer is how many sweeps of rotations each problem took: `MOST_SWEEPS` when they did not suffice.

    Args:
        gram: problems × n × n.
        threshold: one per problem; eigenvalues up to it and their vectors need not be exact.
        active: which problems to look at; the others get zeros or anything else.
        way: `"jacobi"`, the kernel of this project, or `"eigh"`, torch's; by default the first on a card.
    """
    if (way or ("jacobi" if gram.is_cuda else "eigh")) == "eigh":
        values, vectors = torch.linalg.eigh(gram)
        return values, vectors.mT, torch.zeros(len(gram), dtype=torch.int32, device=gram.device)
    problems, n = gram.shape[:2]
    values = torch.zeros(problems, n, dtype=torch.float64, device=gram.device)
    vectors = torch.zeros_like(gram)
    sweeps = torch.zeros(problems, dtype=torch.int32, device=gram.device)
    which = active.int()
    found = _library().jacobi(*_pointers(gram, threshold, which, values, vectors, sweeps), problems, n, _stream())
    _check(found, "jacobi")
    return values, vectors, sweeps


def build(folder: Path, architecture: str = "sm_90") -> Path:
    """Compile the kernels with nvcc; return the library.

    Args:
        folder: where to put it.
        architecture: of the card.
    """
    library = folder / "m3o_card.so"
    command = [
        "nvcc",
        "-O3",
        f"-arch={architecture}",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-o",
        str(library),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return library


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    major, minor = torch.cuda.get_device_capability()
    return ctypes.CDLL(str(build(Path(tempfile.mkdtemp()), f"sm_{major}{minor}")))


def _pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError("tensors for the kernels must be contiguous")
    # The list holds addresses alone: whoever calls keeps the tensors until the kernel is queued.
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _check(code: int, name: str) -> None:
    if code:
        raise RuntimeError(f"{name}: the card answered with error {code}")
