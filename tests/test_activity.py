"""Everything that takes longer than two seconds is shown, on terminals and in log files, and nothing else changes."""

import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from operant import activity as activities
from operant.activity import (
    Activity,
    Display,
    Lines,
    Status,
    Watcher,
    activity,
    as_json,
    describe,
    display_on,
    next_line,
    showing,
    showing_on,
)
from operant.campaign.progress import show_progress
from operant.cli import app
from operant.execution.events import Event, StepActivity
from operant.formatting import duration
from operant.networks import LeNet5, fit, initialise
from operant.profile import fit_profile
from operant.rng import spawn


class Clock:
    """A clock that a test moves; the display is updated as often as the thread would do it."""

    def __init__(self, display: Display | None) -> None:
        self.now = 1000.0
        self.watcher = Watcher(lambda: self.now)
        self.watcher.display = display

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.2)):
            self.now += 0.2
            self.watcher.tick()


@contextmanager
def clock_of(display: Display | None) -> Iterator[Clock]:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(display)
        patch.setattr(activities, "_watcher", clock.watcher)
        yield clock


class Listener:
    """Lines with the time at which each was printed."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self.display = Lines(lambda running, now: self.lines.append((now, describe(running, now))))

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.lines]


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def clock(listener: Listener) -> Iterator[Clock]:
    with clock_of(listener.display) as clock:
        yield clock


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come at once, so that no test has to wait for them."""
    monkeypatch.setattr(activities, "FIRST_LINES", (0.01, 10.0, 30.0))
    monkeypatch.setattr(activities, "GAP", 0.0)
    monkeypatch.setattr(activities, "TICK", 0.005)


# When lines are printed ----------------------------------------------------------------------------------------------

TREES = st.recursive(
    st.floats(0, 100), lambda inner: st.tuples(st.floats(0, 5), st.lists(inner, min_size=1, max_size=3)), max_leaves=8
)


@given(tree=TREES)
def test_an_activity_longer_than_two_seconds_is_shown_within_two_seconds_of_that_mark(tree) -> None:
    """Whatever is nested in it; nothing is shown if everything is shorter."""
    listener, spans = Listener(), []
    with clock_of(listener.display) as clock:
        _work(tree, clock, spans)
    for name, begin, end in spans:
        if end - begin > 2.4:
            assert any(begin <= now <= begin + 4 and name in text for now, text in listener.lines)
    if all(end - begin < 1.9 for _, begin, end in spans):
        assert listener.lines == []


def _work(tree, clock: Clock, spans: list) -> None:
    name, begin = f"work<{len(spans)}>", clock.now
    spans.append((name, begin, begin))
    number = len(spans) - 1
    with activity(name):
        own, inner = (tree, []) if isinstance(tree, float) else tree
        clock.wait(own)
        for part in inner:
            _work(part, clock, spans)
    spans[number] = (name, begin, clock.now)


def test_nothing_shorter_than_two_seconds_is_shown(clock: Clock, listener: Listener) -> None:
    for _ in range(50):
        with activity("short"):
            clock.wait(1.8)
    assert listener.lines == []


def test_a_log_of_an_hour_has_tens_of_lines(clock: Clock, listener: Listener) -> None:
    with activity("long", total=3600, unit="steps") as work:
        for _ in range(3600):
            clock.wait(1)
            work.advance()
    assert [round(now - 1000) for now, _ in listener.lines][:6] == [2, 10, 30, 60, 120, 180]
    assert 20 < len(listener.lines) < 70
    assert listener.texts[0] == "long (1 of 3600 steps, 2 s, about 60 min left)"


@given(seconds=st.floats(0, 1e6))
def test_lines_follow_at_most_a_minute_apart(seconds: float) -> None:
    assert seconds < next_line(seconds) <= seconds + 60.0


def test_a_line_names_all_activities_and_counts(clock: Clock, listener: Listener) -> None:
    with activity("estimating conditions", unit="simulations") as outer:
        outer.advance(7)
        clock.wait(1)
        with activity("reading pictures", 400) as inner:
            inner.advance(100)
            clock.wait(3)
        clock.wait(7)
    assert listener.texts == [
        "estimating conditions (7 simulations, 2 s): reading pictures (100 of 400, 1 s, about 3 s left)",
        "estimating conditions (7 simulations, 10 s)",
    ]


@given(units=st.integers(2, 30), size=st.integers(1, 50), seconds=st.floats(1, 100))
def test_the_time_left_of_steady_work_is_true_also_between_two_units(units: int, size: int, seconds: float) -> None:
    now = [0.0]
    work = Activity(what="searching", total=units * size, clock=lambda: now[0])
    for unit in range(1, units):
        now[0] = unit * seconds
        work.advance(size)
        for part in (0.0, 0.4, 0.9):
            now[0] = (unit + part) * seconds
            left = (units - unit - part) * seconds
            near = {duration(left * (1 + e)) for e in (-1e-9, 1e-9)}
            assert any(work.describe(now[0]).endswith(f"about {text} left)") for text in near)


def test_the_time_left_grows_again_if_a_unit_takes_longer() -> None:
    work = Activity(what="searching", total=4, clock=lambda: 10.0)
    work.advance()
    assert [work.describe(now).rpartition("about ")[2] for now in (10, 15, 20, 40)] == [
        "30 s left)", "25 s left)", "20 s left)", "40 s left)",
    ]  # fmt: skip


def test_nested_activities_do_not_repeat_a_line(clock: Clock, listener: Listener) -> None:
    with activity("outer"):
        clock.wait(1)
        with activity("inner"):
            clock.wait(69)
            with activity("new"):
                clock.wait(3)
    assert [round(now - 1000) for now, _ in listener.lines] == [2, 10, 30, 60, 72]
    assert listener.texts[0] == "outer (2 s): inner (1 s)"
    assert listener.texts[-1].endswith("new (2 s)")


def test_work_that_is_shown_at_once_is_not_shown_again_after_two_seconds(clock: Clock, listener: Listener) -> None:
    with activity("loading", at_once=True):
        clock.wait(9)
    assert listener.texts == ["loading"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_an_error_ends_all_activities(clock: Clock, listener: Listener, error: BaseException) -> None:
    def work() -> None:
        with activity("outer"), activity("inner"):
            clock.wait(3)
            raise error

    with pytest.raises(type(error)):
        work()
    assert clock.watcher.running == ()
    before = len(listener.lines)
    clock.wait(100)
    assert len(listener.lines) == before > 0


def test_activities_may_end_in_any_order(clock: Clock, listener: Listener) -> None:
    one, other = ExitStack(), ExitStack()
    one.enter_context(activity("one"))
    other.enter_context(activity("other"))
    one.close()
    clock.wait(2.2)
    other.close()
    assert listener.texts == ["other (2 s)"]


# Who prints, and who does not ----------------------------------------------------------------------------------------


def test_without_a_display_nothing_is_printed(quick: None, capfd: pytest.CaptureFixture[str]) -> None:
    with activity("silent", total=3) as work:
        work.advance()
        threading.Event().wait(0.1)
    with showing(None), activity("quiet", show=True):
        threading.Event().wait(0.1)
    assert capfd.readouterr() == ("", "")
    assert "operant activities" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("quick")
def test_work_that_reports_nothing_is_shown_by_another_thread() -> None:
    out = StringIO()
    with showing_on(Console(file=out, width=20)):
        with activity("a long [step] that sleeps and reports nothing"):
            wait_until(lambda: bool(out.getvalue()))
        with showing_on(Console(file=StringIO())), activity("another"):  # the first display stays in use
            wait_until(lambda: "another" in out.getvalue())
    assert "a long [step] that sleeps and reports nothing" in out.getvalue()
    shown = out.getvalue()
    with activity("after the end"):
        threading.Event().wait(0.1)
    assert out.getvalue() == shown


def wait_until(there: Callable[[], bool]) -> None:
    for _ in range(2000):
        if there():
            return
        threading.Event().wait(0.01)
    raise AssertionError("nothing was shown")


def test_activities_of_other_threads_are_not_shown(clock: Clock, listener: Listener) -> None:
    seen = []

    def work() -> None:
        with activity("in a thread"):
            seen.append(clock.watcher.running)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [()]


def test_the_display_before_is_used_again(clock: Clock, listener: Listener) -> None:
    with showing(None), activity("hidden"):
        clock.wait(5)
    with activity("seen"):
        clock.wait(2.2)
    assert listener.texts == ["seen (2 s)"]


@pytest.mark.usefixtures("quick")
def test_a_progress_option_shows_lines_on_the_error_stream(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []

    def read() -> bool:
        printed.append(capsys.readouterr())
        return bool(printed[-1].err)

    with activity("training", show=True):
        wait_until(read)
    assert printed[-1].out == ""
    assert printed[-1].err.startswith("training")


def test_a_closed_stream_ends_the_display_only(quick: None) -> None:
    out = StringIO()
    with showing_on(Console(file=out)), activity("work"):
        out.close()
        threading.Event().wait(0.1)


# On a terminal -------------------------------------------------------------------------------------------------------


def test_a_terminal_shows_a_status_that_disappears() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=60, highlight=False)
    assert isinstance(display_on(console), Status)
    assert isinstance(display_on(Console(file=out)), Lines)
    with clock_of(status := Status(console)) as clock:
        with activity("short"):
            clock.wait(0.2)
        assert out.getvalue() == ""
        with activity("reading [pictures]", 10) as work:
            clock.wait(1)
            console.print("a line")
            work.advance(5)
            clock.wait(1)
        assert status.live is None
    shown = out.getvalue()
    assert "reading [pictures] (5 of 10, 2 s, about 1 s left)" in shown
    assert "a line\n" in shown
    assert shown.endswith("\x1b[2K")  # the status was erased


def test_a_bar_shows_activities_beside_it() -> None:
    out = StringIO()
    with clock_of(None) as clock:
        with show_progress(Console(file=out, force_terminal=True, width=200, highlight=False)) as show:
            with activity("checking"):
                clock.wait(1)
                show.progress.refresh()
            show(Event(step="assess", round=1, done=25, total=400))
            with activity("waiting for [25] labels"):
                clock.wait(3)
                show.progress.refresh()
                shown = out.getvalue()
        assert "checking" in shown.partition("round 1, assessing")[0]
        assert "round 1, assessing" in shown
        assert "waiting for [25] labels (3 s)" in shown
        assert clock.watcher.display is None


# Campaigns -----------------------------------------------------------------------------------------------------------


def test_a_long_step_of_a_campaign_prints_further_lines(clock: Clock, listener: Listener) -> None:
    out = StringIO()
    with show_progress(Console(file=out)) as show:
        for epoch in range(4):
            show(Event(step="retrain", round=2, done=epoch, total=4))
            clock.wait(4)
        show(Event(step="retrain", round=2, done=4, total=4))
        clock.wait(60)
        show(Event(step="assess", round=2, done=0, total=400))
        clock.wait(2.2)
    clock.wait(60)
    assert out.getvalue().splitlines() == [
        "round 2, retraining: 0 of at most 4 epochs",
        "round 2, assessing: 0 of at most 400 labels",
    ]
    assert listener.texts == [
        "round 2, retraining (0 of at most 4 epochs, 2 s)",
        "round 2, retraining (2 of at most 4 epochs, 10 s, about 6 s left)",
        "round 2, assessing (0 of at most 400 labels, 2 s)",
    ]


def test_chunks_of_several_searches_in_a_round_are_announced(clock: Clock, listener: Listener) -> None:
    announce = StepActivity(lambda event: event.step, lambda event: f"{event.done} of {event.total}")
    for _ in range(2):
        for done in range(3):
            announce(Event(step="generate", round=1, done=done, total=2))
            clock.wait(1.2)
    announce.close()
    assert listener.texts == ["generate (1 of 2, 2 s, about 1 s left)"] * 2
    assert clock.watcher.running == ()


@pytest.mark.usefixtures("quick")
def test_json_is_one_object_per_line() -> None:
    out = StringIO()
    with show_progress(Console(file=out, width=20), as_json=True) as show:
        show(Event(step="retrain", round=1, done=1, total=4))
        wait_until(lambda: "activity" in out.getvalue())
    event, *others = [json.loads(line) for line in out.getvalue().splitlines()]
    assert event["step"] == "retrain"
    assert {**others[0], "seconds": 0} == {"activity": "round 1, retraining", "done": 1, "total": 4, "seconds": 0}


def test_json_numbers_are_those_of_the_innermost_activity() -> None:
    running = (Activity(what="outer"), Activity(what="inner", total=9, done=3, began=1.0))
    assert as_json(running, 3.5) == {"activity": "outer: inner", "done": 3, "total": 9, "seconds": 2.5}


# Commands ------------------------------------------------------------------------------------------------------------

SLOW = """
import time
from operant.data import LabelsMissing

class Slow(Net):
    def __init__(self):
        {build}
        super().__init__()

def slow_label(asked):
    {label}
    raise LabelsMissing("come back tomorrow")
"""
UNTIL_SHOWN = """for _ in range(600):
        time.sleep(0.1)
        if "waiting for" in open("log").read():
            break"""


def prepare(user, *, build: str, label: str) -> None:
    """A model that is slow to build, and a labeller that is slow to answer."""
    (user.path / "net.py").write_text(user.net + SLOW.format(build=build, label=label))
    user.write("field.npz", user.samples(600, "field"))
    user.configure('\n[labels]\ncallable = "net.py:slow_label"\n', user.toml.replace("net.py:Net", "net.py:Slow"))


def test_a_log_file_shows_slow_steps(user) -> None:
    """The labeller waits for the line about itself, which takes the two seconds that no fixture shortens here."""
    prepare(user, build="pass", label=UNTIL_SHOWN)
    log = user.path / "log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "operant", "run", "operant.toml"]
        ended = subprocess.run(command, cwd=user.path, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    lines = log.read_text().splitlines()
    assert ended.returncode == 2
    assert "labels needed: come back tomorrow" in ended.stderr
    assert lines[0] == "operant: loading"
    assert any(line.startswith("round 0, assessing (0 of") and "waiting for 25 labels (" in line for line in lines)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("option", ["--json", "--quiet", ""])
def test_a_command_shows_slow_steps(user, option: str) -> None:
    prepare(user, build="time.sleep(0.3)", label="time.sleep(0.3)")
    done = CliRunner().invoke(app, ["run", str(user.path / "operant.toml"), *option.split()])
    assert done.exit_code == 2
    if option == "--quiet":
        assert done.stdout == ""
    elif option == "--json":
        pages = [json.loads(line) for line in done.stdout.splitlines()]
        names = [page["activity"] for page in pages if "activity" in page]
        assert "building the model net.py:Slow" in names
        assert "round 0, assessing: waiting for 25 labels" in names
        assert "error" in pages[-1]
    else:
        assert "building the model net.py:Slow" in done.stdout
        assert "waiting for 25 labels" in done.stdout
    assert activities._watcher is None


# Nothing else changes ------------------------------------------------------------------------------------------------


def test_nothing_computed_changes(quick: None, digits28) -> None:
    def compute() -> list[torch.Tensor]:
        start = initialise(LeNet5, generator=spawn(0, "weights"))
        some = digits28.train[:200]
        fitted = fit(start, some, epochs=2, generator=spawn(0, "training"), progress=False)
        profile = fit_profile(some, generator=spawn(0, "profile"))
        return [*fitted.module.state_dict().values(), profile.log_prob(some.x)]

    plain = compute()
    with showing_on(Console(file=StringIO())):
        shown = compute()
    assert all(torch.equal(a, b) for a, b in zip(plain, shown, strict=True))


def test_times_are_finite() -> None:
    text = Activity(what="work", total=5, done=5, began=0.0).describe(math.nextafter(2.0, 3.0))
    assert text == "work (5 of 5, 2 s)"


def test_a_full_disk_does_not_stop_the_work() -> None:
    class Full:
        def update(self, running: object, now: float) -> None:
            raise OSError(28, "No space left on device")

        def clear(self) -> None:
            raise AssertionError("a display that failed is not used again")

    with showing(Full()), activity("first", at_once=True), activity("second", at_once=True):
        done = True
    assert done
