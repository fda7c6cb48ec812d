"""Where samples come from: names, groups, occurrences and class names."""

import json
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from operant import (
    Campaign,
    Classifier,
    Samples,
    Suite,
    assess_reliability,
    fit_profile,
    labels_of,
    load_digits,
    read_samples,
    spawn,
)
from operant.data import LabelFolder, LabelsMissing, content_ids, samples
from operant.data.samples import name_of
from operant.generate import GradientMove
from operant.networks import fit, initialise
from operant.report.failures import RoundFailures, gallery_of
from operant.retrain import OperationalFinetune
from operant.triage.export import csv_of

FROZEN = [[1, 3, 5, 6, 7, 8, 10, 12], [0, 2, 4, 9, 11, 16, 21, 22]]  # ids of the two roles, before there were groups
KINDS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def pool_of(kinds, *, source="a", grouped=True):
    """Inputs with many copies: rows of one kind are equal; groups and names depend on the row."""
    return Samples(
        torch.tensor(kinds, dtype=torch.float32)[:, None].repeat(1, 2),
        torch.tensor(kinds),
        names=[f"{source}/{row}.png" for row in range(len(kinds))],
        groups=[f"scene {row % 3}" if row % 4 else "" for row in range(len(kinds))] if grouped else None,
        classes=("zero", "one", "two", "three", "four", "five"),
    )


def columns(part):
    rows = [part.x.tolist(), part.labels.tolist(), part.ids.tolist(), part.occurrence.tolist()]
    return [*zip(*rows, part.names or (), part.groups or (), strict=True)], part.classes


def uses(part):
    return list(zip(part.ids.tolist(), part.occurrence.tolist(), strict=True))


@given(KINDS, st.randoms(use_true_random=False))
def test_indexing_indexes_every_column(kinds, random):
    pool = pool_of(kinds)
    rows = random.sample(range(len(pool)), random.randint(0, len(pool)))
    everything, classes = columns(pool)
    assert columns(pool[rows]) == ([everything[i] for i in rows], classes)
    mask = torch.tensor([i in rows for i in range(len(pool))])
    assert columns(pool[mask]) == ([everything[i] for i in sorted(rows)], classes)
    assert columns(pool[1::2]) == (everything[1::2], classes)


@given(KINDS, st.integers(0, 12), st.booleans())
def test_concat_undoes_a_cut(kinds, at, grouped):
    pool = replace(pool_of(kinds), groups=pool_of(kinds).groups if grouped else None)
    joined = Samples.concat([pool[:at], pool[at:]])
    assert (joined.groups is None) == (not grouped)
    assert str(joined) == str(pool)
    assert uses(joined) == uses(pool)
    assert (joined.names, joined.groups, joined.classes) == (pool.names, pool.groups, pool.classes)


def occurrences(ids):
    """The oracle: a counter per id."""
    seen: dict[int, int] = defaultdict(int)
    numbers = []
    for i in ids:
        numbers.append(seen[i])
        seen[i] += 1
    return numbers


@given(KINDS)
def test_occurrence_counts_equal_inputs_in_order(kinds):
    pool = Samples(pool_of(kinds).x)
    assert pool.occurrence.tolist() == occurrences(pool.ids.tolist())


@given(st.lists(st.tuples(KINDS, st.integers(0, 2**20)), min_size=1, max_size=5))
def test_an_id_and_its_occurrence_name_one_use_after_any_operations(steps):
    pool = pool_of(steps[0][0])
    for kinds, seed in steps:
        generator = spawn(seed)
        pool = Samples.concat([pool, pool_of(kinds, source=str(seed))[::2], pool[:3]])
        pool = pool[torch.randint(len(pool), (20,), generator=generator)]  # with repetition
        pool = Samples.concat(list(pool.split(a=0.5, b=0.5).values())).to("cpu").with_labels(pool.labels)
        assert len(set(uses(pool))) == len(pool)
        assert len(pool.names) == len(pool.groups) == len(pool)


def test_only_repeated_rows_are_numbered_again(monkeypatch):
    """Sorting the rows at every selection made large pools slow."""
    pool = pool_of([0, 1, 1, 2] * 3)
    monkeypatch.setattr(samples, "_distinct", lambda ids, occurrence: pytest.fail("no row is repeated"))
    for part in (pool[2:9], pool[pool.labels > 0], pool[[5, 3, 7]], pool[:0], pool.to("cpu")):
        assert len(set(uses(part.with_labels(None)))) == len(part)


def test_other_labels_are_checked():
    pool = Samples(torch.rand(3, 2), torch.tensor([0, 1, 0]), classes=("cat", "dog"))
    for y, sentence in (
        ([0, 1], "shape"),
        ([0, -1, 0], "0 or more"),
        ([0.5] * 3, "integers"),
        ([0, 2, 0], "name every"),
    ):
        with pytest.raises(ValueError, match=sentence):
            pool.with_labels(torch.tensor(y))
    with pytest.raises(ValueError, match="name every"):
        Samples.concat([Samples(torch.rand(1, 2), torch.tensor([2])), pool])


def test_the_first_use_of_an_id_keeps_its_occurrence():
    pool = Samples(torch.zeros(4, 1))
    assert pool[[3, 1, 3, 0, 1]].occurrence.tolist() == [3, 1, 4, 0, 5]
    assert Samples.concat([pool[2:], pool]).occurrence.tolist() == [2, 3, 0, 1, 4, 5]


@given(KINDS, st.integers(0, 1000), st.floats(0.1, 0.9))
def test_a_split_never_separates_a_group_and_later_data_follows_it(kinds, seed, share):
    pool = pool_of(kinds * 4)
    roles = {"learning": share, "proof": 1 - share}
    parts = pool.split(**roles)
    role = {group: name for name, part in parts.items() for group in part.groups if group}
    for name, part in parts.items():
        assert all(role[group] == name for group in part.groups if group)
    assert sum(map(len, parts.values())) == len(pool)
    later = Samples(torch.rand(9, 2, generator=spawn(seed)), groups=[f"scene {i % 3}" for i in range(9)])
    for name, part in later.split(**roles).items():
        assert all(role.get(group, name) == name for group in part.groups)


@given(KINDS, st.floats(0.1, 0.9))
def test_without_groups_a_split_goes_by_id(kinds, share):
    pool = pool_of(kinds)
    plain, none = replace(pool, groups=None), replace(pool, groups=("",) * len(pool))
    for role, part in plain.split(a=share, b=1 - share).items():
        assert uses(none.split(a=share, b=1 - share)[role]) == uses(part)


def test_a_split_by_id_is_the_one_of_earlier_versions():
    parts = Samples(torch.zeros(1000, 1), ids=torch.arange(1000)).split(profile=0.5, assessment=0.5)
    assert [part.ids[:8].tolist() for part in parts.values()] == FROZEN


def test_shares_of_a_split_by_group_are_met():
    pool = Samples(torch.zeros(20000, 1), groups=[str(i // 2) for i in range(20000)])
    assert len(pool.split(a=0.3, b=0.7)["a"]) == pytest.approx(6000, abs=400)


def test_ids_are_those_of_one_pass(monkeypatch):
    x = torch.randn(50, 3, 4, generator=spawn(0))
    x[3] = -0.0
    whole = content_ids(x)
    monkeypatch.setattr(samples, "HASHED_BYTES", 7 * 48)
    assert torch.equal(content_ids(x), whole)
    assert torch.equal(content_ids(x.transpose(1, 2).contiguous().transpose(1, 2)), whole)
    assert whole.tolist() == [int(content_ids(row[None])) for row in x]


def test_ids_are_those_of_earlier_versions():
    assert content_ids(torch.arange(6.0).view(2, 3)).tolist() == [8204057186725376796, -8103257086094223464]
    images = -torch.arange(8.0, dtype=torch.float64).view(2, 1, 2, 2)
    assert content_ids(images).tolist() == [-5613932703977374884, -2442834874979766382]


def test_repr_tells_the_number_of_groups():
    pool = pool_of([0, 1, 2, 3])
    assert str(pool) == "Samples(4 x (2,), 4 classes, 4 groups)"
    assert str(Samples(pool.x)) == "Samples(4 x (2,), no labels)"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"names": ["a"]}, "names must be 3 strings, one per input, got 1 values"),
        ({"names": "abc"}, "names must be 3 strings, one per input, got 'abc'"),
        ({"groups": [1, 2, 3]}, "groups must be 3 strings"),
        ({"occurrence": [0, 1]}, "occurrence must be int64 of shape (3,)"),
        ({"ids": torch.tensor([1, 1, 2]), "occurrence": [1, 1, 1]}, "two rows have the same id and occurrence"),
        ({"classes": "cat"}, "classes must be the name of each label"),
        ({"y": [0, 2, 1], "classes": ("cat", "dog")}, "classes must name every label up to 2, got 2 names"),
    ],
)
def test_bad_provenance_is_rejected_with_a_sentence(options, sentence):
    with pytest.raises(ValueError) as error:
        Samples(torch.rand(3, 2), **options)
    assert sentence in str(error.value)


def test_labels_of_different_classes_are_not_mixed_up():
    cats, dogs = (Samples(torch.rand(2, 2), [0, 0], classes=(name,)) for name in ("cat", "dog"))
    with pytest.raises(ValueError, match="samples to join must have the same classes, got cat and dog"):
        Samples.concat([cats, dogs])
    assert Samples.concat([cats.with_labels(None), dogs]).classes == ()
    assert Samples.concat([cats, replace(cats, classes=())]).classes == ("cat",)


def test_labels_are_renumbered_by_class_name():
    pets = Samples(torch.rand(4, 2), [0, 1, 1, 2], classes=("cat", "dog", "fish"))
    wider = pets.in_classes(("fish", "cow", "cat", "dog"))
    assert [wider.classes[y] for y in wider.labels] == [pets.classes[y] for y in pets.labels]
    assert wider.in_classes(("fish", "cow", "cat", "dog")).labels.equal(wider.labels)
    with pytest.raises(ValueError, match="there is no class dog among cat, fish"):
        pets.in_classes(("cat", "fish"))
    assert Samples(torch.rand(2, 2), [1, 0]).in_classes(("a", "b")).labels.tolist() == [1, 0]


# Readers --------------------------------------------------------------------------------------------------------------


def picture(file, grey):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), grey, dtype=np.uint8)).save(file)


def test_pictures_are_named_by_their_files(tmp_path):
    for i in range(3):
        picture(tmp_path / "flat" / f"{i}.png", i)
        picture(tmp_path / "labelled" / "dog" / f"{i}.png", 10 + i)
        picture(tmp_path / "labelled" / "cat" / f"{i}.bmp", 20 + i)
    flat, labelled = read_samples(tmp_path / "flat"), read_samples(tmp_path / "labelled")
    assert (flat.names, flat.classes) == (("0.png", "1.png", "2.png"), ())
    assert labelled.names == ("cat/0.bmp", "cat/1.bmp", "cat/2.bmp", "dog/0.png", "dog/1.png", "dog/2.png")
    assert labelled.classes == ("cat", "dog")
    assert (labelled.x[:, 0, 0, 0] * 255).round().tolist() == [20, 21, 22, 10, 11, 12]


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        (["10", "2", "0", "1"], ("0", "1", "2", "10")),
        (["010", "2", "1"], ("1", "2", "010")),
        (["10", "2", "cat"], ("10", "2", "cat")),  # by name, as soon as one is no number
        (["b10", "b2"], ("b10", "b2")),
    ],
)
def test_folders_named_by_numbers_are_in_the_order_of_the_numbers(tmp_path, folders, classes):
    for grey, name in enumerate(folders):
        picture(tmp_path / name / "a.png", grey)
    found = read_samples(tmp_path)
    assert found.classes == classes
    assert [folders[int(255 * x + 0.5)] for x in found.x[:, 0, 0, 0]] == [classes[y] for y in found.labels]


def test_rows_of_npz_files_have_names_and_groups(tmp_path):
    x = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    np.savez(tmp_path / "field.npz", x=x, groups=["a", "b", "a", ""])
    np.savez(tmp_path / "parts.npz", x_train=x, x_test=x, groups_test=np.array([7, 7, 8, 9]))
    field = read_samples(tmp_path / "field.npz")
    assert field.names == ("field.npz[0]", "field.npz[1]", "field.npz[2]", "field.npz[3]")
    assert field.groups == ("a", "b", "a", "")
    test = read_samples(tmp_path / "parts.npz")
    assert (test.names[1], test.groups) == ("parts.npz[x_test][1]", ("7", "7", "8", "9"))
    assert read_samples(tmp_path / "parts.npz", part="train").groups is None
    np.savez(tmp_path / "bad.npz", x=x, groups=["a", "b"])
    with pytest.raises(ValueError, match=r"groups of .*bad.npz must be 4 strings or integers, one per input, got"):
        read_samples(tmp_path / "bad.npz")


@pytest.fixture
def days(tmp_path):
    """A folder of pictures with one folder per day; some have the same name."""
    for grey, name in enumerate(["mon/1.png", "mon/2.png", "tue/1.png", "tue/3.png"]):
        picture(tmp_path / "field" / name, grey)
    return tmp_path / "field"


@pytest.mark.parametrize(
    "table",
    [
        "file,group\nmon/1.png,a\n2.PNG,b\ntue/1.png,a\n3.png,\n",
        "\ufefffile;group\nmon/1;a\nmon/2.png;b\ntue/1;a\ntue/3;\n",
        "label,group,name\n0,a,mon/1.png\n,b,2\n,a,tue/1.png\n1,,3.png\n",
        "file,group\nmon/1.png,a\n2.png,b\nmon/2.png,b\n\ntue/1.png,a\n3.png,\n",
    ],
)
def test_groups_of_pictures_come_from_a_table(days, table):
    (days.parent / "groups.csv").write_text(table, encoding="utf-8")
    assert read_samples(days, groups=days.parent / "groups.csv").groups == ("a", "b", "a", "")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            "mon/1.png,a\n2.png,b\n",
            "must give the group of every input, but 2 of 4 are missing; add rows such as tue/1.png",
        ),
        ("1.png,a\nmon/2,b\ntue/1,c\n3,d", "but 1 of 4 are missing; add rows such as mon/1.png,scene 1"),
        ("mon/1,a\nmon/2,b\ntue/1,c\n3,d\n4.png,e", "but 1 of its 5 are not, such as 4; correct or remove those rows"),
        ("mon/1,a\nmon/2,b\ntue/1,c\n3,d\nmon/1.png,b", "line 6 of .*: mon/1.png has two groups"),
        ("mon/1,a\nmon/2,b\ntue/1,c\n3,d\n2.png,c", "groups.csv: mon/2.png has the groups b and c; leave one"),
    ],
)
def test_tables_of_groups_must_fit_the_files(days, table, sentence):
    (days.parent / "groups.csv").write_text(f"file,group\n{table}")
    with pytest.raises(ValueError, match=sentence):
        read_samples(days, groups=days.parent / "groups.csv")
    (days.parent / "groups.csv").write_text(f"picture,group\n{table}")
    with pytest.raises(ValueError, match="the first line of .* must be file,group, got 'picture,group'"):
        read_samples(days, groups=days.parent / "groups.csv")


# Labels ---------------------------------------------------------------------------------------------------------------


def named(names, *, seed=0, shape=(1, 4, 4)):
    return Samples(torch.rand(len(names), *shape, generator=spawn(seed)), names=names)


def ask_for(folder, asked):
    with pytest.raises(LabelsMissing) as error:
        folder(asked)
    return str(error.value)


def fill(folder, label):
    """Fill in the table as a script would that knows only its two columns."""
    table = folder.folder / "labels.csv"
    rows = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    table.write_text("\n".join(["name,label", *(f"{row},{label(row)}" for row in rows)]))
    return rows


def test_people_label_files_by_name(tmp_path):
    ask = LabelFolder(folder=tmp_path, classes=3, names=("cat", "dog", "fish"))
    first = named(["field/mon/0001.JPG", "field/mon/Two.png", "field.npz[17]"])
    message = ask_for(ask, first)
    assert "3 of 3 inputs have no label yet, such as 0001.png (field/mon/0001.JPG): view" in message
    assert "write each one's class (0 cat, 1 dog, 2 fish)" in message
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["0001.png", "field.npz[17].png", "two.png"]
    second = named(["field/tue/0001.jpg", "a_b/c.png", "a/b_c.png", ""], seed=1)
    ask_for(ask, Samples.concat([first, second]))
    rows = fill(ask, lambda row: {"0001.png": "dog", "tue_0001.png": "FISH"}.get(row, 0))
    unnamed = name_of(int(second.ids[3]))
    assert rows == ["0001.png", "two.png", "field.npz[17].png", "tue_0001.png", "c.png", "b_c.png", unnamed]
    assert ask(Samples.concat([second, first])).tolist() == [2, 0, 0, 0, 1, 0, 0]
    assert ask(Samples(first.x)).tolist() == [1, 0, 0]  # known by content, also without names
    assert ask.files()["tue_0001"] == "field/tue/0001.jpg"
    listed = json.loads((tmp_path / "inputs.json").read_bytes())
    assert [one["name"] for one in listed.values()] == rows[:-1], "names as the table has them"
    assert listed[name_of(int(first.ids[0]))] == {"name": "0001.png", "file": "field/mon/0001.JPG"}
    earlier = {i: {**one, "name": one["name"].removesuffix(".png")} for i, one in listed.items()}
    (tmp_path / "inputs.json").write_text(json.dumps(earlier))  # as earlier versions wrote it
    assert ask(Samples.concat([second, first])).tolist() == [2, 0, 0, 0, 1, 0, 0]


def test_a_name_that_is_taken_in_every_form_gives_way_to_the_id(tmp_path):
    ask = LabelFolder(folder=tmp_path, classes=2)
    asked = named(["a/x.png", "a_x.png", "A/X.png", "=cmd.png", "../../secret.png", "..", "."])
    ask_for(ask, asked)
    rows = fill(ask, lambda row: 1)
    assert rows == [
        "x.png",
        "a_x.png",
        name_of(int(asked.ids[2])),
        "_cmd.png",
        "secret.png",
        *map(name_of, asked.ids[5:].tolist()),
    ]
    assert all(file.parent == tmp_path for file in tmp_path.rglob("*"))
    assert ask(asked).tolist() == [1] * 7


def test_rows_that_are_not_pictures_are_named_too(tmp_path):
    ask = LabelFolder(folder=tmp_path, classes=2)
    asked = named(["rows.npz[0]", "rows.npz[1]"], shape=(5,))
    ask_for(ask, asked)
    assert fill(ask, lambda row: int(row == "rows.npz[1].npz")) == ["rows.npz[0].npz", "rows.npz[1].npz"]
    assert ask(asked).tolist() == [0, 1]
    assert np.load(tmp_path / "rows.npz[1].npz")["x"].tolist() == asked.x[1].tolist()


@settings(max_examples=30)
@given(st.lists(st.text("aA/._ []1é=", max_size=6), max_size=8))
def test_every_input_gets_its_own_label_whatever_its_name(tmp_path_factory, names):
    ask = LabelFolder(folder=tmp_path_factory.mktemp("labels"), classes=10)
    asked = named(names)
    if names:
        ask_for(ask, asked)
        by_id = {name: i for i, name in enumerate(map(name_of, asked.ids.tolist()))}
        for name, identity in zip(ask.read(), ask.read_by_id(), strict=True):
            ask.set_label(name, by_id[identity])
        assert ask(asked).tolist() == list(range(len(names)))


def test_labels_may_be_given_by_class_name_but_only_by_a_known_one(tmp_path):
    ask = LabelFolder(folder=tmp_path, classes=2, names=("cat", "dog"))
    asked = named(["1.png"])
    ask_for(ask, asked)
    fill(ask, lambda row: "cow")
    with pytest.raises(ValueError, match=r"line 2 of .*: a label must be a class \(0 cat, 1 dog\), got 'cow'"):
        ask(asked)


def test_inputs_may_bring_the_class_names(tmp_path):
    asked = replace(named(["1.png", "2.png"]), classes=("cat", "dog"))
    assert "class (0 cat, 1 dog)" in ask_for(LabelFolder(folder=tmp_path, classes=2), asked)
    assert "class (0 to 2)" in ask_for(LabelFolder(folder=tmp_path, classes=3), asked)


def test_a_damaged_list_of_inputs_is_reported(tmp_path):
    ask = LabelFolder(folder=tmp_path, classes=2)
    ask_for(ask, named(["1.png"]))
    (tmp_path / "inputs.json").write_text("[1]")
    with pytest.raises(ValueError, match="inputs.json is damaged"):
        ask(named(["1.png"]))


# Suites and reports ---------------------------------------------------------------------------------------------------


@given(KINDS, st.integers(0, 1000))
def test_cases_know_the_files_of_their_seeds(tmp_path_factory, kinds, seed):
    path = tmp_path_factory.mktemp("suite") / "cases"
    pool = pool_of(list(range(6)))
    origin = torch.tensor(kinds)
    made = Suite.of(pool.x[origin] + 1, seeds=pool, origin=origin, prediction=origin, method="m")
    plain = Suite.of(
        pool.x[:2],
        seeds=replace(pool, names=None)[:2],
        origin=torch.arange(2),
        prediction=origin[:1].repeat(2),
        method="m",
    )
    both = Suite.concat([made, plain])
    assert made.seed_names == [pool.names[kind] for kind in kinds]
    assert both.seed_names[: len(made)] == made.seed_names
    assert made[::2].seed_names == made.seed_names[::2]
    assert plain.seed_names == ["", ""]
    made.save(path)
    assert Suite.open(path).seed_names == made.seed_names
    assert Suite.open(path).digest() == made.digest()
    assert made.seeds.names == tuple(pool.names[i] for i in made.seeds.labels)
    lines = csv_of(made, ()).splitlines()
    assert lines[0].startswith("row,seed,seed file,label")
    assert [line.split(",")[2] for line in lines[1:]] == made.seed_names
    assert "seed file" not in csv_of(plain, ())


def test_reports_show_the_file_of_a_seed():
    pool = Samples(torch.rand(3, 1, 8, 8), [0, 1, 2], names=("a.png", "b.png", "c.png"))
    columns = {"naturalness": torch.ones(3), "mass": torch.ones(3)}
    suite = Suite.of(
        1 - pool.x, seeds=pool, origin=torch.arange(3), prediction=torch.tensor([1, 2, 0]), method="m", columns=columns
    )
    every = torch.ones(3, dtype=torch.bool)
    shown = gallery_of([RoundFailures(round=1, suite=suite, chosen=every, learned=every)], (0.0, 1.0))
    assert [failure.file for failure in shown.failures] == ["a.png", "b.png", "c.png"]


# Campaigns ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(user):
    """A user whose data are folders of pictures: three classes, one folder per camera."""
    kinds = {"train": ("ant", "bee", "cat"), "clean": ("bee", "cat"), "field": ("north", "south")}
    for part, folders in kinds.items():
        x = (user.samples(12, part).x * 255).to(torch.uint8)[:, 0].numpy()
        for i, pixels in enumerate(x):
            file = user.path / part / folders[i % len(folders)] / f"{i // len(folders)}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    for name in kinds:
        user = replace(user, toml=user.toml.replace(f'"{name}.npz"', f'"{name}"'))
    return user


def test_class_names_come_from_the_folders_of_the_training_data(photos):
    job = photos.build("[labels]\nfolder = 'mine'", start=photos.toml)
    assert job.classes == job.train.classes == ("ant", "bee", "cat")
    assert [job.clean.classes[y] for y in job.clean.labels] == [name.split("/")[0] for name in job.clean.names]
    assert set(job.clean.labels.tolist()) == {1, 2}
    message = ask_for(job.labeller, job.field(0))
    assert "write each one's class (0 ant, 1 bee, 2 cat)" in message
    assert json.loads((photos.path / "mine" / "classes.json").read_bytes())["names"] == ["ant", "bee", "cat"]


def test_given_class_names_number_the_folders(photos):
    start = photos.toml.replace("[data]", '[data]\nclasses = ["cat", "bee", "ant"]')
    job = photos.build(start=start)
    assert job.classes == ("cat", "bee", "ant")
    for part in (job.train, job.clean):
        assert [part.classes[y] for y in part.labels] == [name.split("/")[0] for name in part.names]
    other = photos.build(start=photos.toml.replace("[data]", '[data]\nclasses = ["A", "B", "C"]'))
    assert other.classes == ("A", "B", "C")
    assert other.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_folders_must_fit_the_classes_of_the_model(photos):
    (photos.path / "train" / "cat").rename(photos.path / "cat")
    with pytest.raises(ValueError, match=r"\[data\] clean: there is no class cat among ant, bee"):
        photos.build(start=photos.toml)
    (photos.path / "clean" / "cat").rename(photos.path / "cats")
    with pytest.raises(ValueError, match=r"\[data\] train must have a folder for each of the model's 3 classes, got 2"):
        photos.build(start=photos.toml)


def test_field_files_are_named_from_the_folder_of_the_configuration(photos):
    field = photos.build(start=photos.toml).field(0)
    assert field.names[:2] == ("field/north/0.png", "field/north/1.png")
    assert (field.groups, field.classes, field.y) == (None, (), None)
    start = photos.toml.replace('"field"', '["field/north", "field/south"]')
    assert photos.build(start=start).field(0).names == field.names


def test_groups_of_field_files_come_from_a_table(photos):
    start = photos.toml.replace("[data]", '[data]\ngroups = "groups.csv"')
    rows = [f"{camera}/{i}.png,{camera} {i // 3}" for camera in ("north", "south") for i in range(6)]
    (photos.path / "groups.csv").write_text("\n".join(["file,group", *rows]))
    field = photos.build(start=start).field(0)
    assert field.groups == tuple(row.split(",")[1] for row in rows)
    (photos.path / "groups.csv").write_text("\n".join(["file,group", *rows[1:]]))
    with pytest.raises(ValueError, match=r"\[data\] groups: .* 1 of 12 are missing; add rows such as north/0.png"):
        photos.build(start=start)


def small_campaign(tmp_path, field, labeller, **options):
    digits = load_digits()
    train, clean = digits.train[:200], digits.train[200:300]
    start = initialise(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), generator=spawn(0, "weights"))
    model = Classifier(fit(start, train, epochs=4, generator=spawn(0, "fit"), progress=False).module)
    campaign = Campaign(
        requirement=0.3,
        moves={"gradient": partial(GradientMove, radius=0.5, steps=2)},
        rounds=1,
        labels=20,
        label_batch=10,
        seeds_per_round=10,
        dimensions=4,
        judge_draws=0,
        retrainer=OperationalFinetune(epochs=1, steps=5, progress=False),
        observers=(),
    )
    return campaign(model, train=train, clean=clean, field=field, labeller=labeller, folder=tmp_path / "run", **options)


def test_provenance_survives_a_campaign(tmp_path):
    labelled = load_digits().train[400:1000]
    names, groups = [f"digit {i}.png" for i in range(600)], [f"page {i // 3}" for i in range(600)]
    field = replace(labelled, y=None, names=names, groups=groups, classes=("monday", "tuesday"))  # folders by day
    batches = []

    def label(asked):
        batches.append(asked)
        return labels_of(labelled)(asked)

    result = small_campaign(tmp_path, field, label, classes=[f"class {c}" for c in range(10)])
    asked = Samples.concat(batches)
    rows = [int(name.removeprefix("digit ").removesuffix(".png")) for name in asked.names]
    assert len(asked) >= 10
    assert asked.ids.equal(field.ids[rows])
    assert asked.groups == tuple(field.groups[row] for row in rows)
    assert asked.classes == tuple(f"class {c}" for c in range(10))
    profile = field.split(profile=0.5, assessment=0.5)["profile"]
    assert not set(asked.groups) & set(profile.groups)
    decisions = [decision for done in result.rounds for decision in done.decisions if decision.what == "class"]
    assert all(decision.names == tuple(f"class {c}" for c in range(10)) for decision in decisions)
    with pytest.raises(ValueError, match="the groups of field inputs have changed since round 0 began"):
        small_campaign(tmp_path, replace(field, groups=groups[::-1]), label, classes=[f"class {c}" for c in range(10)])


def test_a_campaign_needs_groups_for_both_halves(tmp_path):
    field = replace(load_digits().train[400:1000].with_labels(None), groups=["all"] * 600)
    with pytest.raises(ValueError, match="got 600 in 1 groups, which are never separated; collect more"):
        small_campaign(tmp_path, field, labels_of(load_digits().train))


def test_assessments_name_the_classes():
    labelled = replace(load_digits().train, classes=[f"digit {c}" for c in range(10)])
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    profile = fit_profile(labelled[:300], generator=spawn(0))
    found = assess_reliability(
        model, profile, labels_of(labelled), pool=labelled[300:], labels=50, generator=spawn(0, "assess")
    )
    assert [part.name for part in found.by_class] == list(labelled.classes)
    assert "Most of it comes from class digit " in str(found)
