"""Fitting a profile and asking it, against scikit-learn's principal components and kernel density on the same codes.

60 000 inputs of 28 x 28, 32 principal components, kernels with the likeliest of 21 bandwidths: what fitting on all of
them and rating all of them costs. scikit-learn tries one bandwidth and rates a few rows, which is scaled up. CPU time,
one thread, in this process.

    python benchmarks/profiles.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
import time

from sklearn.decomposition import PCA
from sklearn.neighbors import KernelDensity
from torch import Tensor

from operant import Samples, load_digits, spawn
from operant.conditions import Recipe, apply, normal, uniform
from operant.profile import fit_profile


def inputs(n: int) -> Tensor:
    """Digits of 28 x 28 under conditions drawn separately for each image."""
    x = load_digits(size=28).train.x
    drawn = Recipe(severities={"rotation": normal(10), "blur": uniform(0, 1), "brightness": normal(0.1)})
    return apply(x.repeat(n // len(x) + 1, 1, 1, 1)[:n], drawn.draw(n, generator=spawn(0, "inputs")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6000 inputs, under 50 s")
    n = 6_000 if parser.parse_args().quick else 60_000
    field = Samples(inputs(n))
    start = time.process_time()
    profile = fit_profile(field, generator=spawn(0))
    fitted = time.process_time()
    profile.log_prob(field.x)
    end = time.process_time()
    few = 20 if n > 10_000 else 200
    codes = field.x.flatten(1).numpy()
    begin = time.process_time()
    z = PCA(profile.codes.shape[1], whiten=True, random_state=0).fit_transform(codes)
    learned = KernelDensity(bandwidth=float(profile.density.bandwidth.mean())).fit(z[: len(profile.codes)])
    ready = time.process_time()
    learned.score_samples(z[:few])
    theirs = (time.process_time() - ready) * n / few
    columns = ["", "CPU s"]
    rows = [
        [f"fit_profile, {n} x 784, {profile.codes.shape[1]} components, 21 bandwidths tried", f"{fitted - start:.1f}"],
        [f"log_prob of {n}", f"{end - fitted:.1f}"],
        ["both", f"{end - start:.1f}"],
        ["scikit-learn: PCA and one bandwidth, fitted", f"{ready - begin:.1f}"],
        [f"scikit-learn: score_samples of {few}, scaled up to {n}", f"{theirs:.1f}"],
    ]
    _timing.show("An operational profile", columns, rows)
    _timing.finish("profile", {"profile_log_prob_vs_sklearn": theirs / (end - fitted)})


if __name__ == "__main__":
    main()
