"""Measures against plain ways to the same numbers: dropout passes one by one, scikit-learn's KDE, a bare forward pass.

CPU time, one thread, all in this process. A ratio above 1 means Operant is faster, except for those named
``_per_forward``, which say how many bare forward passes something costs.

    python benchmarks/measures.py [--quick]
"""

import _timing  # isort: skip  # first: it sets what torch reads when it is imported

import argparse
from collections.abc import Callable

import torch
from sklearn.neighbors import KernelDensity
from torch import Tensor, nn

from operant import Classifier, Samples, load_digits, spawn
from operant.density import fit_kde
from operant.measure import KMNC, Coverage, fit_ranges, mc_dropout
from operant.networks import LeNet5, fit, initialise
from operant.rng import normal_like
from operant_studies.networks import ResNet20

PASSES = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and inputs, under 50 s")
    quick = parser.parse_args().quick
    ratios = dropout(quick=quick, repeats=1 if quick else 3)
    ratios |= density(queries=2_000 if quick else 10_000, theirs=10 if quick else 100, repeats=1 if quick else 3)
    ratios |= coverage(repeats=2 if quick else 5)
    _timing.finish("measures", ratios)


def dropout(*, quick: bool, repeats: int) -> dict[str, float]:
    """Fifty passes with dropout against fifty plain ones: the same module in NCHW, its dropout layers on."""
    places = {"mc_dropout_conv_fc": ("conv1", "conv2", "fc1", "fc2"), "mc_dropout_fc": ("fc1", "fc2")}
    ratios, rows = {}, []
    for name in (*places, "mc_dropout_last"):
        lenet = name in places
        factory: Callable[[], nn.Module] = (
            (lambda: LeNet5(dropout=0.25, dropout_after=places[name]))  # noqa: B023  # called in this turn
            if lenet
            else (lambda: ResNet20(dropout=0.25, dropout_after=("pool",)))
        )
        n = (256 if lenet else 64) if quick else 512
        x = torch.rand(n, *((1, 28, 28) if lenet else (3, 32, 32)), generator=spawn(0, name, "inputs"))
        ratios[name], row = _against_plain_passes(initialise(factory, generator=spawn(0, name)), x, repeats=repeats)
        rows.append([name, str(n), *row])
    columns = ["", "inputs", "Operant CPU s", "plain CPU s", "ratio", "largest difference of means", "note"]
    _timing.show(f"Monte-Carlo dropout, {PASSES} passes", columns, rows)
    return ratios


def _against_plain_passes(module: nn.Module, x: Tensor, *, repeats: int) -> tuple[float, list[str]]:
    model = Classifier(module)
    for part in module.eval().modules():
        part.train(isinstance(part, nn.Dropout))

    def plain() -> Tensor:
        with torch.no_grad():
            passes = [torch.cat([module(part).softmax(1) for part in x.split(256)]) for _ in range(PASSES)]
        return torch.stack(passes)

    def ours() -> Tensor:
        return mc_dropout(model, x, passes=PASSES, generator=spawn(0, "masks")).probs

    difference = float((ours().mean(0) - plain().mean(0)).abs().max())
    times = _timing.cpu_times({"operant": ours, "plain": plain}, repeats=repeats)
    note = mc_dropout(model, x, passes=PASSES, generator=spawn(0, "masks")).note
    ratio = times["plain"] / times["operant"]
    return ratio, [f"{times['operant']:.3f}", f"{times['plain']:.3f}", f"{ratio:.1f}", f"{difference:.3f}", note]


def density(*, queries: int, theirs: int, repeats: int) -> dict[str, float]:
    """Exact KDE on 60 000 references. scikit-learn gets few of the queries, and its time is scaled up in proportion.

    ``kde_d16`` compares with its defaults, which are not exact in so many dimensions; ``kde_d16_one_leaf`` with a tree
    of a single leaf, which is.
    """
    ratios, rows = {}, []
    for d in (16, 32):
        references = torch.randn(60_000, d, generator=spawn(0, "references", d))
        x = torch.randn(queries, d, generator=spawn(0, "queries", d))
        scott = len(references) ** (-1 / (d + 4))
        ours = fit_kde(references, bandwidth=scott)
        rival = KernelDensity(bandwidth=scott, leaf_size=60_000).fit(references.numpy())  # the default is not exact
        default = KernelDensity(bandwidth=scott).fit(references.numpy())
        some = x[:theirs].numpy()
        runs: dict[str, Callable[[], object]] = {
            "operant": lambda: ours.log_prob(x),  # noqa: B023  # run in this turn
            "exact": lambda: rival.score_samples(some),  # noqa: B023
            "default": lambda: default.score_samples(some),  # noqa: B023
        }
        times = _timing.cpu_times(runs, repeats=repeats)
        scale = queries / theirs
        ratios[f"kde_d{d}"] = scale * times["default"] / times["operant"]
        ratios[f"kde_d{d}_one_leaf"] = scale * times["exact"] / times["operant"]
        errors = [
            float((torch.as_tensor(kde.score_samples(some)) - ours.log_prob(x[:theirs])).abs().max())
            for kde in (rival, default)
        ]
        rows.append(
            [str(d), f"{times['operant']:.2f}", f"{scale * times['exact']:.1f}", f"{scale * times['default']:.1f}"]
        )
        rows[-1] += [
            f"{ratios[f'kde_d{d}']:.0f}",
            f"{ratios[f'kde_d{d}_one_leaf']:.0f}",
            f"{errors[0]:.1e}",
            f"{errors[1]:.1e}",
        ]
    columns = [
        "d",
        "Operant CPU s",
        "scikit-learn, one leaf",
        "scikit-learn, default",
        "ratio to default",
        "to one leaf",
    ]
    columns += ["difference from one leaf", "from default"]
    _timing.show(f"KDE, {queries} queries on 60000 references", columns, rows)
    return ratios


def coverage(*, repeats: int, rows: int = 10_000, k: int = 1000) -> dict[str, float]:
    """KMNC of a trained LeNet-5: the update alone, and with reading the activations, against ``model.predict``."""
    digits = load_digits(size=28)
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    module = fit(start, digits.train, epochs=2, batch_size=32, generator=spawn(0, "training"), progress=False).module
    model = Classifier(module)
    x = digits.train.x.repeat(rows // len(digits.train) + 1, 1, 1, 1)[:rows]
    x = (x + 0.1 * normal_like(x, generator=spawn(0, "noise"))).clamp(0, 1)
    ranges = fit_ranges(model, Samples(digits.train.x))
    empty = Coverage.of(KMNC(ranges=ranges, k=k))
    activations = ranges.neurons(model, x)
    runs: dict[str, Callable[[], object]] = {
        "forward pass": lambda: model.predict(x),
        "update": lambda: empty.update(activations),
        "activations": lambda: ranges.neurons(model, x),
        "activations and update": lambda: empty.update(ranges.neurons(model, x)),
    }
    times = _timing.cpu_times(runs, repeats=repeats)
    forward = times["forward pass"]
    table = [[name, f"{t:.3f}", f"{t / forward:.2f}"] for name, t in times.items()]
    title = f"KMNC, k = {k}, {ranges.neurons.count} neurons, {rows} rows"
    _timing.show(title, ["", "CPU s", "forward passes"], table)
    return {
        "kmnc_update_per_forward": times["update"] / forward,
        "kmnc_with_activations_per_forward": times["activations and update"] / forward,
    }


if __name__ == "__main__":
    main()
