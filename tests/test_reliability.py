"""The number for a release meeting: right on average, bounded as it says, and an error where it cannot be given."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import binom

from operant import Classifier, Samples, load_digits, results, spawn
from operant.assess import Assessment, assess_reliability, clopper_pearson, plan
from operant.data import LabelFolder, LabelsMissing, content_ids, labels_of
from operant.data.samples import name_of
from operant.networks import LeNet5, fit, initialise
from operant.profile import Profile, fit_profile


@pytest.fixture(scope="module")
def field() -> Samples:
    return load_digits().train[400:]


@pytest.fixture(scope="module")
def weak() -> Classifier:
    """A small network that has learned too little: about one digit in ten is misclassified."""
    start = initialise(lambda: LeNet5(size=8), generator=spawn(0, "weights"))
    train = load_digits().train[:400]
    return Classifier(
        fit(start, train, epochs=10, learning_rate=4e-3, generator=spawn(0, "training"), progress=False).module
    )


@pytest.fixture(scope="module")
def profile(field) -> Profile:
    return fit_profile(field, generator=spawn(0))


@pytest.fixture(scope="module")
def truth(weak, field) -> float:
    return float((weak.predict(field.x) != field.labels).double().mean())


def assess(model, profile, field, seed=0, **options) -> Assessment:
    blind = Samples(field.x, ids=field.ids)
    return assess_reliability(model, profile, labels_of(field), pool=blind, generator=spawn(seed), **options)


@pytest.mark.parametrize("design", ["stratified", "pps", "sequential", "rhc", "poisson"])
def test_the_estimate_is_right_on_average(weak, profile, field, truth, design: str) -> None:
    found = [assess(weak, profile, field, seed, labels=100, design=design).pmi for seed in range(20)]
    assert np.mean(found) == pytest.approx(truth, abs=4 * np.std(found) / 20**0.5 + 1e-9)


def test_the_bound_holds(weak, profile, field, truth) -> None:
    bounds = [assess(weak, profile, field, seed, labels=80).upper for seed in range(100)]
    assert sum(upper >= truth for upper in bounds) >= 89
    assert np.median(bounds) < 3 * truth


def test_strata_need_fewer_labels_than_simple_sampling(weak, profile, field) -> None:
    strata, simple = (
        np.mean([assess(weak, profile, field, seed, labels=100, design=d).upper for seed in range(12)])
        for d in ("stratified", "pps")
    )
    assert strata < simple


def test_parts_add_up_to_the_whole(weak, profile, field) -> None:
    found = assess(weak, profile, field)
    for parts in (found.by_class, found.by_cell):
        assert sum(part.pmi for part in parts) == pytest.approx(found.pmi)
        assert sum(part.mass for part in parts) == pytest.approx(1)
        assert sum(part.labels for part in parts) == found.labels == 300
        assert sum(part.failures for part in parts) == found.failures
    assert {len(part.centre) for part in found.by_cell} == {profile.codes.shape[1]}
    assert [part.name for part in found.by_class] == [str(c) for c in range(10)]
    weights = np.array([part.mass for part in found.by_class])
    shares = np.bincount(field.labels.numpy(), minlength=10) / len(field)
    assert np.abs(weights - shares).max() < 0.1


def test_the_claim_about_the_field_is_wider_than_about_the_pool(weak, profile, field) -> None:
    found = assess(weak, profile, field)
    assert found.upper < found.field_upper < 2 * found.upper
    assert found.claim == found.field_upper
    weighted = assess(weak, profile, field, mass=profile.weights(Samples(field.x)))
    heavy = torch.ones(len(field)).index_fill_(0, torch.arange(3), 1e5)
    assert [f.name for f in assess(weak, profile, field, mass=heavy).findings] == ["few inputs carry the mass"]
    assert weighted.field_upper is None
    assert weighted.claim == weighted.upper


def test_it_tells_whether_a_requirement_is_met(weak, profile, field) -> None:
    found = assess(weak, profile, field)
    assert found.meets(0.9) is True
    assert found.meets(found.pmi / 2) is False
    assert found.meets((found.pmi + found.claim) / 2) is None
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="requirement must be between 0 and 1"):
            found.meets(wrong)


def test_it_prints_for_people_and_round_trips(weak, profile, field, tmp_path) -> None:
    found = assess(weak, profile, field)
    text = str(found)
    assert text.startswith("The model misclassifies an estimated ")
    assert "With 95 % confidence it is at most " in text
    assert "300 of 1028 inputs were labelled" in text
    results.save(found, tmp_path / "assessment.json")
    assert results.load(tmp_path / "assessment.json", Assessment) == found


def test_the_same_generator_asks_for_the_same_labels(weak, profile, field) -> None:
    assert assess(weak, profile, field, 3) == assess(weak, profile, field, 3)


def test_what_was_learned_from_is_rejected_under_any_name(weak, profile, field) -> None:
    used = content_ids(field.x[:7])
    renamed = Samples(field.x.double().flip(0), field.labels.flip(0), torch.arange(len(field)))
    with pytest.raises(ValueError, match="7 of the pool's 1028 inputs were learned from"):
        assess_reliability(
            weak, profile, labels_of(renamed), pool=Samples(renamed.x.float(), ids=renamed.ids), used=used,
            generator=spawn(0),
        )  # fmt: skip
    rest = field[~torch.isin(content_ids(field.x), used)]
    assert assess(weak, profile, rest, used=used).pool == len(field) - 7


def test_bad_input_is_rejected(weak, profile, field) -> None:
    for options, message in [
        ({"labels": 0}, "labels must be a whole number, at least 1"),
        ({"confidence": 1.0}, "confidence must"),
        ({"labels": 5000}, "n must be at most the 1028 inputs"),
        ({"mass": torch.ones(3)}, "mass must be"),
        ({"design": "top", "labels": 10}, "no estimate can be made"),
    ]:
        with pytest.raises(ValueError, match=message):
            assess(weak, profile, field, **options)
    with pytest.raises(ValueError, match="no mass on this pool"):
        assess(weak, profile, Samples(1 - field.x, field.labels))
    with pytest.raises(ValueError, match="the pool is empty|no labelled inputs"):
        assess(weak, profile, field[:0])
    for wrong in (lambda s: torch.full((len(s),), 10), lambda s: torch.zeros(3).long(), lambda s: None):
        with pytest.raises(ValueError, match="the labeller must return"):
            assess_reliability(weak, profile, wrong, pool=Samples(field.x), generator=spawn(0))


def test_no_failure_gives_no_zero_bound_and_all_failures_no_nan(weak, profile, field) -> None:
    right = Samples(field.x, weak.predict(field.x), field.ids)
    found = assess(weak, profile, right)
    assert found.pmi == 0
    assert 0 < found.upper < found.field_upper < 0.05
    wrong = Samples(field.x, (weak.predict(field.x) + 1) % 10, field.ids)
    found = assess(weak, profile, wrong)
    assert found.pmi == pytest.approx(1)
    assert found.upper == found.field_upper == 1
    assert "Most of it comes from class" in str(found)


def certain(model: Classifier) -> Classifier:
    """The same predictions, each with a confidence of exactly 1 in single precision."""
    return Classifier(torch.nn.Sequential(model.unwrap(), Saturating()))


class Saturating(torch.nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return 1e4 * torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).to(logits)


def test_a_model_that_is_certain_of_everything_is_assessed(weak, profile, field, truth) -> None:
    model = certain(weak)
    assert float(model.probs(field.x).max(1).values.min()) == 1
    found = [assess(model, profile, field, seed, labels=80) for seed in range(100)]
    assert sum(a.upper >= truth for a in found) >= 89
    assert np.mean([a.pmi for a in found]) == pytest.approx(truth, abs=4 * np.std([a.pmi for a in found]) / 10)
    assert {a.design for a in found} == {"pps"}
    assert all("drawn by mass alone" in str(a) for a in found)
    plain = assess(model, profile, field, labels=80, design="pps")
    assert (plain.ids, plain.upper) == (found[0].ids, found[0].upper)
    assert "drawn by mass alone" not in str(plain)


@pytest.mark.parametrize("design", ["sequential", "rhc", "poisson"])
@pytest.mark.parametrize("risk", [0.0, 0.3])
def test_risks_that_are_all_the_same_leave_the_mass(weak, profile, field, truth, design: str, risk: float) -> None:
    mass = torch.rand(len(field), generator=spawn(3)).double()
    mass[::5] = 0
    failed = (weak.predict(field.x) != field.labels).double()
    expected = float(mass / mass.sum() @ failed)
    options = {"labels": 100, "design": design, "mass": mass, "risk": lambda m, x, y: torch.full((len(x),), risk)}
    found = [assess(weak, profile, field, seed, **options) for seed in range(20)]
    pmi = [a.pmi for a in found]
    assert np.mean(pmi) == pytest.approx(expected, abs=4 * np.std(pmi) / 20**0.5)
    assert {a.design for a in found} == {design}


# Plans


@pytest.mark.parametrize(("target", "expected"), [(0.05, 0.03), (0.05, 0.02), (0.1, 0.05), (0.1, 0.0)])
def test_a_plan_is_enough_from_there_on_and_not_before(target: float, expected: float) -> None:
    result = plan(target, expected=expected, power=0.8)

    def enough(n: int) -> bool:
        most = max((k for k in range(n) if clopper_pearson(k, n, confidence=0.95).upper <= target), default=-1)
        return float(binom.cdf(most, n, expected)) >= 0.8

    assert clopper_pearson(0, result.fewest, confidence=0.95).upper <= target
    assert clopper_pearson(0, result.fewest - 1, confidence=0.95).upper > target
    assert all(enough(n) for n in range(result.labels, result.labels + 40, 13))
    assert result.labels == result.fewest or not enough(result.labels - 1)
    assert "labels" in str(result)


def test_plans_that_cannot_be_are_rejected() -> None:
    with pytest.raises(ValueError, match="improve the model first"):
        plan(0.01, expected=0.02)
    with pytest.raises(ValueError, match="target must be"):
        plan(0.0)
    with pytest.raises(ValueError, match="confidence"):
        plan(0.1, confidence=0)
    with pytest.raises(ValueError, match="power"):
        plan(0.1, power=1.0)
    assert plan(0.01).labels is None


# Labels from people


def test_a_folder_asks_once_and_goes_on_when_labels_are_there(tmp_path, field) -> None:
    ask = LabelFolder(folder=tmp_path / "to_label", classes=10)
    some = Samples(field.x[:5], ids=field.ids[:5])
    with pytest.raises(LabelsMissing, match="5 of 5 inputs have no label yet"):
        ask(some)
    table = tmp_path / "to_label" / "labels.csv"
    lines = table.read_text().splitlines()
    assert lines[0] == "name,label"
    assert len(list((tmp_path / "to_label").glob("*.png"))) == 5
    filled = [f"{line}{int(y)}" for line, y in zip(lines[1:], field.labels[:5], strict=True)]
    table.write_text("\n".join([lines[0], *filled[:4], lines[5]]) + "\n")
    with pytest.raises(LabelsMissing, match="1 of 5"):
        ask(some)
    table.write_text("\n".join([lines[0], *filled]) + "\n")
    assert torch.equal(ask(some), field.labels[:5])
    assert torch.equal(ask(some[[3, 1, 1]]), field.labels[[3, 1, 1]])
    with pytest.raises(LabelsMissing, match="2 of 4"):
        ask(Samples(field.x[3:7], ids=field.ids[3:7]))
    assert len(table.read_text().splitlines()) == 8  # what was filled in stays


def test_a_folder_rejects_labels_that_are_none(tmp_path, field) -> None:
    ask = LabelFolder(folder=tmp_path, classes=10)
    with pytest.raises(LabelsMissing):
        ask(field[:2])
    table = tmp_path / "labels.csv"
    good = table.read_text()
    table.write_text(good.replace(",", ",12", 2).replace("name,12label", "name,label"))
    with pytest.raises(ValueError, match="line 2 of .* a label must be a class from 0 to 9, got '12'"):
        ask(field[:2])
    table.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="must be name,label, got 'a,b'"):
        ask(field[:2])
    table.write_bytes(good.encode("utf-16"))
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        ask(field[:2])


@pytest.mark.parametrize(
    "written",
    [
        lambda rows: "\ufeffname;label\r\n" + "".join(f"{n};{y}\r\n" for n, y in rows),
        lambda rows: "Name, Label\n" + "".join(f" {n.upper()}.png , {y}.0 \n" for n, y in rows),
        lambda rows: "label,name,by\n" + "".join(f"{y},{n},me\n" for n, y in rows) + f",{rows[0][0]},\n\n",
    ],
)
def test_what_spreadsheets_make_of_the_table_is_understood(tmp_path, field, written) -> None:
    ask = LabelFolder(folder=tmp_path, classes=10)
    with pytest.raises(LabelsMissing):
        ask(field[:3])
    names = [name_of(i) for i in field.ids[:3].tolist()]
    assert not any(name[0].isdigit() for name in names)
    rows = list(zip(names, field.labels[:3].tolist(), strict=True))
    (tmp_path / "labels.csv").write_text(written(rows), encoding="utf-8", newline="")
    assert torch.equal(ask(field[:3]), field.labels[:3])


def test_what_people_added_to_the_table_stays(tmp_path, field) -> None:
    """Columns of their own, in their order, with what their spreadsheet puts between and before them."""
    ask = LabelFolder(folder=tmp_path, classes=10)
    with pytest.raises(LabelsMissing):
        ask(field[:2])
    first, second, third = (name_of(i) for i in field.ids[:3].tolist())
    table = tmp_path / "labels.csv"
    lines = ["Remark;name;label", f'"schräg; dünn";{first}.png', f'"two\nlines";{second};3']
    table.write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    ask.set_label(first, 7)
    with pytest.raises(LabelsMissing, match="1 of 3"):
        ask(field[:3])
    ask.set_label(second, None)
    lines = [lines[0], f"{lines[1]};7", f'"two\nlines";{second};', f";{third};"]
    assert table.read_text(encoding="utf-8") == "\ufeff" + "\n".join(lines) + "\n"
    assert ask.read() == {first: 7, second: None, third: None}


TELLING = """
import sys
from pathlib import Path
import torch
from operant import Samples
from operant.data import LabelFolder, LabelsMissing
ask, mine = LabelFolder(folder=Path(sys.argv[1]), classes=2), int(sys.argv[2])
names = list(ask.read())
print("ready", flush=True)
input()
for i, name in enumerate(names[mine::2]):
    ask.set_label(name, mine)
    if i % 10 == 0:
        try:
            ask(Samples(torch.rand(1, 3), ids=torch.tensor([10_000 * (1 + mine) + i])))
        except LabelsMissing:
            pass
"""


@pytest.mark.slow
def test_two_processes_lose_none_of_their_labels(tmp_path) -> None:
    ask = LabelFolder(folder=tmp_path / "to_label", classes=2)
    with pytest.raises(LabelsMissing):
        ask(Samples(torch.rand(80, 3), ids=torch.arange(80)))
    names = list(ask.read())
    command = [sys.executable, "-c", TELLING, str(ask.folder)]
    both = [subprocess.Popen([*command, who], stdin=-1, stdout=-1, text=True) for who in ("0", "1")]
    assert [one.stdout.readline() for one in both] == ["ready\n"] * 2
    for one in both:
        one.stdin.write("\n")
        one.stdin.flush()
    for one in both:
        one.communicate(timeout=60)
        assert one.returncode == 0
    known = ask.read()
    assert [known[name] for name in names] == [i % 2 for i in range(80)]
    asked = {name_of(10_000 * (1 + who) + i) for who in (0, 1) for i in range(0, 40, 10)}
    assert known.keys() - set(names) == asked


def test_inputs_that_are_no_pictures_are_written_as_arrays(tmp_path) -> None:
    rows = Samples(torch.rand(3, 7))
    with pytest.raises(LabelsMissing):
        LabelFolder(folder=tmp_path, classes=2)(rows)
    written = {float(np.load(path)["x"][0]) for path in tmp_path.glob("*.npz")}
    assert written == {float(v) for v in rows.x[:, 0]}


def test_known_labels_are_found_by_id(field) -> None:
    look_up = labels_of(field)
    order = torch.randperm(len(field), generator=spawn(0))[:50]
    assert torch.equal(look_up(Samples(field.x[order], ids=field.ids[order])), field.labels[order])
    with pytest.raises(ValueError, match="1 of 1 inputs are not among the labelled"):
        look_up(Samples(torch.rand(1, 1, 8, 8)))
