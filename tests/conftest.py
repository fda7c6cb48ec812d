"""What every test shares. The first lines must run before torch is imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import nn

from operant import Classifier, Samples, activity, load_digits, spawn
from operant.networks import LeNet5, fit, initialise, save_weights

if TYPE_CHECKING:
    from operant.campaign.build import CampaignJob
    from operant.campaign.config import Config

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C, and tests press it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, and tests send it

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


@pytest.fixture(autouse=True, scope="session")
def _no_progress_lines() -> Iterator[None]:
    """Tests compare what is printed, and on a busy machine anything may take longer than two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activity, "TICK", 1e6)
        yield


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes rich see a terminal, or none; a terminal shows every step of an activity, however short."""
    advance = activity.Activity.advance

    def advance_and_show(work: activity.Activity, n: int = 1) -> None:
        advance(work, n)
        if activity._watcher is not None:
            activity._watcher.tick()

    def choose(terminal: bool) -> None:
        for name, value in {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
            monkeypatch.setenv(name, value) if terminal else monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(activity, "STATUS_AFTER", 0.0)
    monkeypatch.setattr(activity.Activity, "advance", advance_and_show)
    return choose


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


# A user's folder with operant.toml

TOML = """
[model]
module = "net.py:Net"
weights = "net.safetensors"
[data]
train = "train.npz"
clean = "clean.npz"
field = "field.npz"
[requirement]
pmi = 0.1
"""
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(x.flatten(1))


def label(asked):
    return asked.x.flatten(1)[:, :3].argmax(1)


def number():
    return 3


def nonsense(asked):
    return asked.x.flatten(1).sum(1)


def breaks(asked):
    return {}["no such\\nservice"]


def later(asked):
    from operant.data import LabelsMissing

    raise LabelsMissing("come back tomorrow")
"""


@dataclass(frozen=True)
class UserFolder:
    """A folder with the code, weights and data of a user, and an operant.toml."""

    path: Path
    toml: str = TOML
    net: str = NET

    @staticmethod
    def samples(n: int, name: str) -> Samples:
        """Images of 8 by 8 in three classes: the largest of the first three pixels."""
        x = torch.rand(n, 1, 8, 8, generator=spawn(0, name))
        return Samples(x, x.flatten(1)[:, :3].argmax(1))

    def write(self, name: str, data: Samples) -> None:
        """Save samples as an npz file."""
        np.savez(self.path / name, x=data.x.numpy(), **({} if data.y is None else {"y": data.y.numpy()}))

    def configure(self, text: str = "", start: str = TOML) -> Config:
        """Write operant.toml and read it."""
        from operant.campaign.config import load_config

        (self.path / "operant.toml").write_text(start + text)
        return load_config(self.path)

    def build(self, text: str = "", start: str = TOML) -> CampaignJob:
        """Write operant.toml and build its campaign."""
        from operant.campaign.build import build

        return build(self.configure(text, start))


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserFolder]:
    """A user's folder; its code is forgotten after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    folder = UserFolder(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "operant.toml").write_text(TOML)
    net = nn.Sequential()
    net.head = nn.Linear(64, 3)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    with torch.no_grad():
        net.head.weight[:, :3] = 20 * torch.eye(3)
    save_weights(net, tmp_path / "net.safetensors")
    for name, n in (("train", 60), ("clean", 30), ("field", 40)):
        folder.write(f"{name}.npz", folder.samples(n, name))
    yield folder
    for name in set(sys.modules) - known:
        if tmp_path in Path(getattr(sys.modules[name], "__file__", None) or "").parents:
            del sys.modules[name]
