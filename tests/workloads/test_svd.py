import dask.array as da
import numpy as np
import pytest
from small import persist

from commbench.errors import VerificationError
from commbench.workloads.svd import Svd

KIND = Svd


def test_the_singular_values_are_numpys(done):
    work, (_, s, _) = done
    s = s.compute()
    np.testing.assert_allclose(s, np.linalg.svd(work.x.compute(), compute_uv=False), rtol=1e-12)


def _replace(array, index, value):
    block = array.compute()
    block[index] = value(block[index]) if callable(value) else value
    return da.from_array(block, chunks=array.chunks)


def _swap_values(u, s, v):
    return u, s[np.array([1, 0, 2, 3, 4])], v


def _swap_all(u, s, v):
    order = np.array([0, 2, 1, 3, 4])
    return u[:, order], s[order], v[order]


def _stretch(u, s, v):
    return u * 2, s, v / 2


def _drop_last(u, s, v):
    return u, _replace(s, 4, 0.0), v


def _dressed_qr(u, s, v):
    q, r = np.linalg.qr((u.compute() * s.compute()) @ v.compute())
    norms = np.linalg.norm(r, axis=1)
    order = np.argsort(-norms)
    q, r = q[:, order], (r / norms[:, None])[order]
    chunks = (u.chunks, s.chunks, v.chunks)
    return tuple(map(da.from_array, (q, norms[order], r), chunks))


CORRUPTIONS = {
    "singular values swapped": (_swap_values, "norm of x - u s v"),
    "all swapped alike": (_swap_all, "falling sequence"),
    "signs turned": (lambda u, s, v: (-u, -s, v), "falling sequence"),
    "u stretched, v shrunk": (_stretch, "u' u - 1"),
    "s shrunk, v stretched": (lambda u, s, v: (u, s / 2, v * 2), "squared singular values"),
    "qr dressed as svd": (_dressed_qr, "v v' - 1"),
    "last value lost": (_drop_last, "norm of x - u s v"),
    "one number of u, a little": (
        lambda u, s, v: (_replace(u, (3, 4), lambda number: number + 1e-8), s, v),
        "norm of x - u s v",
    ),
    "one block of u": (
        lambda u, s, v: (_replace(u, slice(20, 40), lambda block: block[::-1]), s, v),
        "norm of x - u s v",
    ),
    "nan in u": (lambda u, s, v: (_replace(u, (50, 0), np.nan), s, v), "found nan"),
    "nan in s": (lambda u, s, v: (u, _replace(s, 0, np.nan), v), "found nan"),
    "rows of v swapped": (lambda u, s, v: (u, s, v[::-1]), "norm of x - u s v"),
    "columns, not rows, in v": (lambda u, s, v: (u, s, v.T), "norm of x - u s v"),
    "too few values": (lambda u, s, v: (u, s[:4], v), r"s: expected the shape \(5,\)"),
    "too narrow v": (lambda u, s, v: (u, s, v[:, :4]), r"v: expected the shape \(5, 5\)"),
    "too narrow u": (lambda u, s, v: (u[:, :4], s, v), r"block \(0, 0\) of u.*found \(20, 4\)"),
    "rows of u lost": (lambda u, s, v: (u[:90], s, v), r"block \(4, 0\) of u.*found \(10, 5\)"),
    "v lost": (lambda *arrays: arrays[:2], "found 2 arrays"),
}


@pytest.mark.parametrize(("change", "message"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corrupted_result_is_caught(client, done, change, message):
    work, result = done
    corrupted = persist(client, change(*result))
    with pytest.raises(VerificationError, match=message):
        work.verify(client, corrupted)
