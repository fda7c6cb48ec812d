"""The pytest plug-in: ``--operant-report=DIR`` writes what every `operant.testing.assert_reliable` of a session found.

It is loaded in every pytest session where Operant is installed, so nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from operant.checks import Check, Refused, listening

PROPERTY = "operant"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("operant").addoption(
        "--operant-report",
        metavar="DIR",
        help="write what every assert_reliable found to DIR: report.html, report.json, report.md, report.xml (JUnit)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--operant-report") is not None:
        config.pluginmanager.register(_Collector(config), "operant-report")


class _Collector:
    """Checks travel with the reports of their tests, so that they arrive from other processes too."""

    def __init__(self, config: pytest.Config) -> None:
        if not (name := config.getoption("--operant-report")):
            raise pytest.UsageError(
                "--operant-report must name a folder to write to, got nothing: --operant-report=DIR"
            )
        self.folder = config.invocation_params.dir / name
        self.works_for_another = hasattr(config, "workerinput")  # one of pytest-xdist's processes
        self.told: list[Check | Refused] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--operant-report must name a folder to write to: {error}") from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        def keep(check: Check | Refused) -> None:
            told = asdict(replace(check, test=item.nodeid))
            item.user_properties.append((PROPERTY, json.dumps(told)))

        with listening(keep):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # by then the test has said everything
            self.told += [_check(str(value)) for name, value in report.user_properties if name == PROPERTY]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if not self.works_for_another:
            from operant.report.checks import write_checks

            write_checks(sorted(self.told, key=lambda check: check.test), self.folder)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        met = sum(isinstance(check, Check) and check.met for check in self.told)
        refused = sum(isinstance(check, Refused) for check in self.told)
        terminalreporter.section("operant")
        could_not = f", {refused} could not be checked" if refused else ""
        terminalreporter.line(f"{met} of {len(self.told)} requirements met{could_not}")
        terminalreporter.line(f"report: {Path(self.folder, 'report.html')}")


def _check(told: str) -> Check | Refused:
    fields = json.loads(told)
    if "why" in fields:
        return Refused(**fields)
    return Check(**fields | {"worst": tuple((name, k, n) for name, k, n in fields["worst"])})
