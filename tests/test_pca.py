"""Principal components: three ways to compute them agree with each other and with scikit-learn, in bounded memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA as Reference
from torch import Tensor

from operant import Samples, spawn
from operant.density import fit_mixture
from operant.generate import frechet_distance
from operant.generate.semantic import quality
from operant.measure import surprise
from operant.measure.surprise import LSA, MDSA
from operant.networks import encoders, fit_pca
from operant.networks.encoders import by_covariance, by_inner_products, by_iteration

WAYS = {"covariance": by_covariance, "inner products": by_inner_products, "iteration": by_iteration}


def rows_of(n: int, size: int, rank: int, constant: int, seed: int) -> Tensor:
    """Rows of this rank, whose variances fall by a third from one direction to the next, and constant columns."""
    generator = spawn(seed)
    codes = torch.randn(n, rank, generator=generator, dtype=torch.float64) * 1.5 ** -torch.arange(rank)
    x = codes @ torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64)).Q.T
    x[:, :constant] = 0.25
    return x + 3


@pytest.mark.parametrize("way", WAYS)
@given(
    n=st.integers(5, 60),
    size=st.integers(4, 80),
    rank=st.integers(3, 12),
    constant=st.integers(0, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_every_way_finds_the_components_of_scikit_learn(way, n, size, rank, constant, seed):
    """For fewer and for more rows than columns, of any rank."""
    x = rows_of(n, size, min(rank, size), constant, seed)
    dimensions = min(4, size, n - 1)
    found, reference = WAYS[way](x, dimensions), Reference().fit(x.numpy())
    variances = torch.from_numpy(reference.explained_variance_) * (n - 1) / n
    largest = float(variances[0])
    torch.testing.assert_close(found.centre, x.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.variances, variances[:dimensions], rtol=1e-6, atol=1e-8 * largest)
    torch.testing.assert_close(found.total, variances.sum(), rtol=1e-9, atol=0)
    kept = int((found.variances > 1e-6 * largest).sum())
    directions = found.directions(kept)
    torch.testing.assert_close(directions.T @ directions, torch.eye(kept).double(), rtol=0, atol=1e-8)
    gaps = -torch.diff(torch.cat([variances, variances.new_zeros(1)]))
    clear = [k for k in range(kept) if float(torch.cat([gaps[k - 1 : k], gaps[k : k + 1]]).amin()) > 0.05 * largest]
    overlap = (directions * torch.from_numpy(reference.components_[:kept]).T).sum(0).abs()
    torch.testing.assert_close(overlap[clear], torch.ones(len(clear)).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", ["inner products", "iteration"])
def test_signs_are_determined(way):
    directions = WAYS[way](rows_of(40, 30, 6, 0, 0), 4).directions(4)
    assert bool((directions.gather(0, directions.abs().argmax(0, keepdim=True)) > 0).all())


@pytest.mark.parametrize(("n", "exact"), [(30, 40), (60, 40)], ids=["inner products", "iteration"])
def test_encoders_agree_whichever_way_is_taken(n, exact, monkeypatch):
    samples = Samples(rows_of(n, 64, 8, 1, 5).float().view(n, 1, 8, 8))
    small = fit_pca(samples, dimensions=4, generator=spawn(0))
    monkeypatch.setattr(encoders, "EXACT", exact)
    monkeypatch.setattr(encoders, "VALUES", 200)  # several blocks of rows and of columns
    large = fit_pca(samples, dimensions=4, generator=spawn(0))
    torch.testing.assert_close(large.scale, small.scale, rtol=1e-5, atol=0)
    torch.testing.assert_close(large(samples.x).abs(), small(samples.x).abs(), rtol=0, atol=1e-3)
    torch.testing.assert_close(large.decode(large(samples.x)), small.decode(small(samples.x)), rtol=0, atol=1e-4)
    assert large.explained == pytest.approx(small.explained, abs=1e-7)


def test_equal_inputs_are_refused_whichever_way_is_taken(monkeypatch):
    for exact in (4096, 30, 10):
        monkeypatch.setattr(encoders, "EXACT", exact)
        with pytest.raises(ValueError, match="20 inputs are all equal"):
            fit_pca(Samples(torch.ones(20, 31)), dimensions=3, generator=spawn(0))


def test_images_of_imagenet_size_fit_into_memory():
    """Their covariance would take 181 GB, or with 62720 features 31 GB."""
    x = torch.rand(20, 3, 224, 224, generator=spawn(0))
    pca = fit_pca(Samples(x), dimensions=8, generator=spawn(0))
    codes = pca(x).double()
    torch.testing.assert_close(codes.T @ codes / 20, torch.eye(8).double(), rtol=0, atol=1e-3)


# The same mistake elsewhere: a matrix of all pairs of features where there are fewer inputs than features


def test_mahalanobis_surprise_is_the_same_by_inner_products(monkeypatch):
    a, predicted = rows_of(30, 50, 20, 2, 0), torch.arange(30) % 2
    query = rows_of(12, 50, 20, 2, 0)
    known = MDSA.of(a, predicted)
    monkeypatch.setattr(surprise, "EXACT", 10)
    found = MDSA.of(a, predicted)
    for c, part in found.parts.items():
        torch.testing.assert_close(part.rate(query), known.parts[c].rate(query), rtol=1e-5, atol=1e-6)


def test_too_few_references_are_refused_before_their_covariance_is_computed():
    with pytest.raises(ValueError, match="20 references of class 0 must span the 200000 neurons"):
        LSA.of(torch.rand(20, 200_000, generator=spawn(0)), torch.zeros(20, dtype=torch.int64))


def test_the_frechet_distance_is_the_same_by_inner_products(monkeypatch):
    a, b = rows_of(20, 30, 9, 0, 0), rows_of(25, 30, 9, 1, 1)
    known = frechet_distance(a, b)
    monkeypatch.setattr(quality, "EXACT", 10)
    assert frechet_distance(a, b) == pytest.approx(known, rel=1e-6)


def test_a_mixture_of_whole_images_is_refused():
    with pytest.raises(ValueError, match="at most 4096 dimensions, got 150528"):
        fit_mixture(torch.rand(12, 150_528), components=2, generator=spawn(0))


def test_no_inputs_have_no_codes():
    pca = fit_pca(Samples(rows_of(40, 9, 6, 0, 0).float()), dimensions=3, generator=spawn(0))
    assert pca(torch.zeros(0, 9)).shape == (0, 3)
