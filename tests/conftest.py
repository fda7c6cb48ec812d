"""What every test shares. The first lines must run before torch is imported."""

import os
import signal

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

from operant import Classifier, load_digits, spawn
from operant.networks import LeNet5, fit, initialise

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C, and tests press it

# The same examples and first weights in every run; `HYPOTHESIS_PROFILE=explore` looks for new ones.
settings.register_profile("same", derandomize=True, print_blob=True, deadline=None)  # a busy machine is slow
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

IN_CI = os.environ.get("CI") == "true"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    return skips_fail_in_ci((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector):
    return skips_fail_in_ci((yield))


def skips_fail_in_ci(report):
    """A test that needs something that is not installed, such as Chromium, is skipped elsewhere and fails in CI."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{reason}; in CI (CI=true) every test must run"
    return report


@pytest.fixture(autouse=True)
def _same_first_weights() -> None:
    """Layers that a test builds draw their weights from torch's global stream."""
    torch.random.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def digits28():
    return load_digits(size=28)


@pytest.fixture(scope="session")
def lenet(digits28) -> Classifier:
    """A LeNet-5 that has learned the digits."""
    start = initialise(LeNet5, generator=spawn(0, "weights"))
    fitted = fit(start, digits28.train, epochs=4, batch_size=32, generator=spawn(0, "training"), progress=False)
    return Classifier(fitted.module)
