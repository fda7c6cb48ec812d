"""The pytest plug-in: ``--operant-report=DIR`` writes a report of all `operant.testing.assert_reliable` results.

Every pytest session loads it where Operant is installed, so heavy imports wait until they are needed.
"""

import json
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from operant.reliability_checks import Check, InvalidCheck, subscribed

PROPERTY = "operant"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("operant").addoption(
        "--operant-report",
        metavar="DIR",
        help="write all results of assert_reliable to DIR: report.html, report.json, report.md, report.xml (JUnit)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--operant-report") is not None:
        config.pluginmanager.register(_Collector(config), "operant-report")


class _Collector:
    """Collects checks through the reports of their tests, so that checks from other processes arrive too."""

    def __init__(self, config: pytest.Config) -> None:
        if not (name := config.getoption("--operant-report")):
            raise pytest.UsageError(
                "--operant-report must name a folder to write to, got an empty name; use --operant-report=DIR"
            )
        self.folder = config.invocation_params.dir / name
        self.is_worker = hasattr(config, "workerinput")  # one of pytest-xdist's processes
        self.checks: list[Check | InvalidCheck] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--operant-report must name a folder to write to: {error}") from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        def keep(check: Check | InvalidCheck) -> None:
            fields = asdict(replace(check, test=item.nodeid))
            item.user_properties.append((PROPERTY, json.dumps(fields)))

        with subscribed(keep):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # by then the test has published all its checks
            self.checks += [_check(str(value)) for name, value in report.user_properties if name == PROPERTY]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if not self.is_worker:
            from operant.report.checks import write_checks

            write_checks(sorted(self.checks, key=lambda check: check.test), self.folder)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        met = sum(isinstance(check, Check) and check.met for check in self.checks)
        invalid = sum(isinstance(check, InvalidCheck) for check in self.checks)
        terminalreporter.section("operant")
        could_not = f", {invalid} could not be checked" if invalid else ""
        terminalreporter.line(f"{met} of {len(self.checks)} requirements met{could_not}")
        terminalreporter.line(f"report: {Path(self.folder, 'report.html')}")


def _check(text: str) -> Check | InvalidCheck:
    fields = json.loads(text)
    if "reason" in fields:
        return InvalidCheck(**fields)
    return Check(**fields | {"worst": tuple((name, k, n) for name, k, n in fields["worst"])})
