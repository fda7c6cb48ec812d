"""The progress of a campaign: a bar, plain lines, or JSON."""

import json
from io import StringIO

from rich.console import Console

from operant.campaign.assessing import SequentialAssessment
from operant.campaign.progress import (
    ProgressBar,
    ProgressLines,
    ProgressState,
    describe_times,
    event_json,
    seconds_by_part,
    show_progress,
)
from operant.campaign.records import Decision, Round
from operant.execution.events import Event

ASSESSMENT = SequentialAssessment(labels=50, failures=2, upper=0.13, confidence=0.975, reason="")
PMI = "pmi 4 % on 50 labels, at most 13 %"
ZERO = Round(number=0, arrived=40, clean=0.99, assessment=ASSESSMENT)
DECISION = Decision(what="move", names=("[fog]", "blur"), before=(0.5, 0.5), after=(0.6, 0.4), why="fog finds more")
EVENTS = [
    Event(step="profile", round=0, done=0, total=5),
    Event(step="assess", round=0, done=0, total=400),
    Event(step="assess", round=0, done=25, total=400),
    Event(step="assess", round=0, done=50, total=50, details={"assessment": ASSESSMENT}),
    Event(step="round", round=0, done=0, total=5, details={"record": ZERO, "assessment": ASSESSMENT}),
    Event(step="profile", round=1, done=1, total=5),
    Event(step="decide", round=1, done=1, total=5, details={"decisions": (DECISION,)}),
    Event(step="generate", round=1, done=1, total=4, details={"cases": 10, "failures": 7}),
    Event(step="generate", round=1, done=3, total=4, details={"cases": 30, "failures": 21, "batch_size": 64}),
    Event(step="retrain", round=1, done=0, total=1, details={"cases": 21}),
    Event(step="retrain", round=1, done=1, total=1, details={"record": "2 epochs"}),
    Event(step="round", round=1, done=1, total=5, details={"record": "round 1: clean [98%]", "assessment": ASSESSMENT}),
]
ROUND_0 = f"round 0: clean accuracy 99 %, {PMI}"
MOVES = "moves: [fog] 60 %, blur 40 % (without feedback [fog] 50 %, blur 50 %), because fog finds more"


def lines_of(events: list[Event]) -> list[str]:
    """The plain lines of events that are ten seconds apart."""
    out, clock = StringIO(), iter(range(0, 1000, 10))
    lines = ProgressLines(console=Console(file=out, width=40), state=ProgressState(clock=lambda: next(clock)))
    for event in events:
        lines(event)
    return out.getvalue().splitlines()


def test_a_round_that_buys_no_labels_says_why():
    why = "pmi exceeds the requirement with 80 % confidence"
    event = Event(step="assess", round=1, done=0, total=0, details={"no_labels": why})
    assert lines_of([event]) == [f"round 1, assessing: no labels are bought, because {why}"]


def test_what_is_estimated_of_a_new_field_comes_before_its_round():
    known = ("Class shares in the field", "Without labels, the model is estimated to get 37 % of field inputs wrong")
    event = Event(step="round", round=0, done=0, total=3, details={"record": "round 0: pmi", "field": known})
    assert lines_of([event]) == [*known, "round 0: pmi"]
    assert event_json(event)["details"]["field"] == list(known)


def test_names_that_are_numbers_are_not_mixed_up_with_shares():
    shares = {"before": (0.5, 0.5), "after": (0.42, 0.58), "why": "w"}
    by_class = Decision(what="class", names=("1", "cat"), **shares)
    assert str(by_class) == (
        "seeds by class: cat 58 %, '1' 42 % "
        "(without feedback, by likeness of training inputs to field inputs: '1' 50 %, cat 50 %), because w"
    )
    by_cell = Decision(what="cell", names=("0", "1"), **shares)
    assert str(by_cell).startswith("seeds by region of the field map: region 1 58 %, region 0 42 % (without")


def test_plain_lines_show_step_chunk_failures_and_time_left():
    assert lines_of(EVENTS) == [
        "round 0, learning the profile of the field",
        "round 0, assessing: 0 of at most 400 labels",
        ROUND_0,
        "round 1, learning the profile of the field",
        MOVES,
        "round 1, searching for failures: chunk 1 of 4, 7 failures so far",
        "round 1, searching for failures: chunk 3 of 4, 21 failures so far, little memory, batches of 64 rows, about "
        "5 s left",
        "round 1, retraining: 0 of at most 1 epochs",
        "round 1: clean [98%]",
    ]


def test_plain_lines_show_an_assessment_once():
    """The line of a round shows it already; without such a line, the next one does."""
    assert lines_of([*EVENTS[:4], EVENTS[5], EVENTS[7]])[2:] == [
        f"round 1, learning the profile of the field: {PMI}",
        "round 1, searching for failures: chunk 1 of 4, 7 failures so far",
    ]


def test_a_resumed_campaign_shows_the_last_assessment():
    """Finished rounds are read from disk, so they send only one event each."""
    idle = Event(
        step="round", round=1, done=1, total=5,
        details={"record": Round(number=1, arrived=40, clean=0.99), "assessment": ASSESSMENT},
    )  # fmt: skip
    generate = Event(step="generate", round=2, done=2, total=4, details={"cases": 10, "failures": 7})
    assert lines_of([EVENTS[4], idle, generate]) == [
        ROUND_0,
        "round 1: clean accuracy 99 %",
        "round 2, searching for failures: chunk 2 of 4, 7 failures so far",
    ]
    state = ProgressState()
    for event in (EVENTS[4], idle):
        state.update(event)
    state.update(generate)
    assert state.text(generate) == f"chunk 2 of 4, 7 failures so far, {PMI}"  # beside the bar


def test_times_are_summed_over_rounds_and_shown_by_step():
    times = {f"round-00{i}/{name}": 50.0 for i in (1, 2) for name in ("suite", "retraining.json", "round.json")}
    times |= {"round-000/profile.json": 3.0, "round-000/naturalness.json": 4.5, "other": 1.0}
    times |= {"round-000/labels-000.json": 2.0, "round-000/predictions": 1.5, "conditions": 480.0, "start": 0.2}
    seconds = seconds_by_part(times)
    learned = {"profile": 3.0, "naturalness": 4.5, "generate": 100.0, "retrain": 100.0, "assess": 3.5}
    assert seconds == {"start": 0.2, "conditions": 480.0, **learned, "other": 101.0, "total": sum(times.values())}
    assert describe_times(seconds) == (
        "13 min: estimating conditions 8 min, learning the profile of the field 3 s, learning naturalness 4 s, "
        "searching for failures 2 min, retraining 2 min, assessing 4 s, other work 2 min"
    )


def test_a_terminal_shows_a_bar_below_the_lines_of_finished_rounds():
    out = StringIO()
    with show_progress(Console(file=out, force_terminal=True, width=200, highlight=False)) as show:
        assert isinstance(show, ProgressBar)
        for event in EVENTS:
            show(event)
            show.progress.refresh()
    shown = out.getvalue()
    assert ROUND_0 in shown
    assert MOVES in shown
    assert "retraining" in shown
    assert "25 of at most 400 labels" in shown
    assert "chunk 3 of 4, 21 failures so far" in shown
    assert PMI in shown.partition("chunk 3 of 4")[2]
    assert "round 1: clean [98%]" in shown


def test_json_is_one_object_per_line_and_quiet_prints_nothing():
    out = StringIO()
    with show_progress(Console(file=out, width=20), as_json=True) as show:
        for event in EVENTS:
            show(event)
    printed = [json.loads(line) for line in out.getvalue().splitlines()]
    assert printed == [event_json(event) for event in EVENTS]
    assert printed[4] == {
        "step": "round", "round": 0, "done": 0, "total": 5,
        "details": {"record": ROUND_0, "assessment": str(ASSESSMENT)},
    }  # fmt: skip
    assert printed[6]["details"] == {"decisions": [MOVES]}
    out = StringIO()
    with show_progress(Console(file=out), quiet=True) as show:
        show(EVENTS[0])
    assert out.getvalue() == ""
