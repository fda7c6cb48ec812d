"""Labels from a file, a table, a function or a folder."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from operant import Samples, spawn
from operant.campaign.build import CampaignJob
from operant.data import LabelFolder, LabelsMissing, label_folder
from operant.data.groups import with_groups
from operant.data.label_files import labels_from_table, note_on_unused_rows
from operant.data.samples import name_of
from operant.data.tables import read_csv, table_key, unambiguous_endings
from operant.triage.desk import RequestFields
from operant.triage.label_desk import LabelDesk


@pytest.mark.parametrize("how", ["file = 'field.npz'", "file = 'known.csv'", "callable = 'net.py:label'"])
def test_labels_come_from_the_named_source(user, how):
    field = user.samples(40, "field")
    rows = [f"{name_of(i)},{y}" for i, y in zip(field.ids.tolist(), field.y.tolist(), strict=True)]
    (user.path / "known.csv").write_text("\n".join(["name,label", *rows]))
    job = user.build(f"[labels]\n{how}")
    order = torch.randperm(40, generator=spawn(0, "order"))
    asked = job.field(0)[order]
    assert job.labeller(asked).equal(field.y[order])


@pytest.fixture
def pictures(user):
    """Field inputs as images; builds the campaign with a table of these rows."""
    for day in ("field/mon", "field/tue"):
        (user.path / day).mkdir(parents=True)
        for i in range(4):
            pixels = np.full((8, 8), 20 * i + (5 if "tue" in day else 0), dtype=np.uint8)
            Image.fromarray(pixels).save(user.path / day / (f"Img_{i}.png" if i else f"only in {day[-3:]}.bmp"))

    def labelled(*rows: str) -> CampaignJob:
        (user.path / "labels.csv").write_text("\n".join(["name,label", *rows]))
        start = user.toml.replace('"field.npz"', '["field/mon", "field/tue"]')
        return user.build("[labels]\nfile = 'labels.csv'", start=start)

    return labelled


def test_a_table_may_name_images_by_their_files(pictures):
    job = pictures(
        "field/mon/Img_1.png,1", "mon/img_2,2", "mon/IMG_3.png,0", "tue/Img_1.png,2", "tue/Img_2.png,1",
        "tue/Img_3.png,1", "only in mon.bmp,0", "field/tue/only in tue.bmp,2",
    )  # fmt: skip
    field = job.field(0)
    assert job.labeller(field).tolist() == [1, 2, 0, 0, 2, 1, 1, 2]
    assert job.labeller(field[[5, 0]]).tolist() == [1, 1]


def test_images_without_a_label_are_requested_by_their_files(pictures):
    job = pictures("Img_1.png,1", "mon/Img_2.png,", "mon/Img_3.png,2")  # two files are named Img_1
    for row, name in ((0, "mon/Img_1.png"), (1, "mon/Img_2.png"), (3, "only in mon.bmp")):
        with pytest.raises(LabelsMissing, match=f"1 of 2 inputs have no label .* rows such as {name},2"):
            job.labeller(job.field(0)[[row, 2]])


def test_rows_that_name_no_field_input_are_noted(pictures):
    rows = ["mon/Img_1.png,1", "tue/Img_2.png,2"]
    assert not [note for note in pictures(*rows).notes if "labels.csv" in note]
    (note,) = [
        note
        for note in pictures(*rows, "Gone_1.png,0", "mon/Img_9.png,1", "Img_1.png,2", "gone,", ",", "").notes
        if "labels.csv" in note
    ]
    assert "labels.csv: 4 of 6 rows are ignored" in note
    assert "(Gone_1.png, mon/Img_9.png, Img_1.png and 1 more)" in note  # two files are named Img_1


def test_a_table_that_names_no_field_input_at_all_is_rejected(pictures):
    with pytest.raises(ValueError, match=r"\[labels\] file: .*none of its 2 rows names one \(a.png, b.png\)"):
        pictures("a.png,1", "b.png,2")
    pictures()  # may be filled in later


def test_rows_of_a_label_folder_are_known_by_the_names_in_it(user):
    job = user.build()
    with pytest.raises(LabelsMissing):
        job.labeller(job.field(0)[:8])
    table = user.path / "to_label" / "labels.csv"
    table.write_text(table.read_text().replace("\n", ",1\n").replace("label,1", "label") + "other,1\n")
    (note,) = [n for n in user.build(f"[labels]\nfile = {str(table)!r}").notes if "labels.csv" in n]
    assert "1 of 9 rows are ignored" in note
    assert "(other)" in note


def test_a_table_may_name_images_by_their_ids(pictures):
    ids = pictures().field(0).ids.tolist()
    job = pictures(*(f"{name_of(i)},{row % 3}" for row, i in enumerate(ids)))
    assert job.labeller(job.field(0)).tolist() == [row % 3 for row in range(8)]


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (torch.arange(40), "must contain labels from 0 to 2, the model's classes, got 39"),
        (torch.arange(40) - 1, "must be labels of 0 or more, got -1"),
        (torch.rand(40), "must be 40 integer labels"),
        (torch.zeros(40, 3, dtype=torch.int64), "must be 40 integer labels"),
        (None, "has no labels"),
    ],
)
def test_a_file_with_wrong_labels_is_rejected(user, y, sentence):
    x = user.samples(40, "field").x.numpy()
    np.savez(user.path / "labels.npz", x=x, **({} if y is None else {"y": y.numpy()}))
    with pytest.raises(ValueError) as error:  # before anything that takes long
        user.build("[labels]\nfile = 'labels.npz'")
    assert str(error.value).startswith("[labels] file: ")
    assert sentence in str(error.value)


def test_labels_of_inputs_of_another_shape_are_rejected(user):
    user.write("labels.npz", Samples(user.samples(40, "field").x.flatten(1), torch.zeros(40, dtype=torch.int64)))
    job = user.build("[labels]\nfile = 'labels.npz'")
    with pytest.raises(ValueError, match=r"must contain inputs of the field data's shape \(1, 8, 8\), got \(64,\)"):
        job.labeller(job.field(0))


@pytest.mark.parametrize("how", ["file = 'field.npz'", "file = 'labels.csv'", "folder = 'mine'"])
def test_missing_labels_are_requested(user, how):
    (user.path / "labels.csv").write_text("name,label\n")
    job = user.build(f"[labels]\n{how}")
    with pytest.raises(LabelsMissing, match="12 of 12 inputs .* run this again"):
        job.labeller(Samples(user.samples(12, "others").x))
    assert (user.path / "mine" / "labels.csv").exists() == ("folder" in how)


def test_people_label_in_a_folder_by_default(user):
    with pytest.raises(LabelsMissing, match="write each one's class .0 to 2. into .*to_label/labels.csv"):
        user.build().labeller(Samples(user.samples(12, "others").x))
    assert len(list((user.path / "to_label").glob("*.png"))) == 12


def test_a_function_that_returns_no_labels_is_rejected(user):
    job = user.build("[labels]\ncallable = 'net.py:nonsense'")
    with pytest.raises(ValueError, match="nonsense must return 40 whole numbers from 0 to 2.*float32"):
        job.labeller(job.field(0))


def test_a_function_that_raises_is_reported_with_its_inputs(user):
    asked = user.samples(12, "others")
    job = user.build("[labels]\ncallable = 'net.py:breaks'")
    with pytest.raises(ValueError) as error:
        job.labeller(asked)
    first = name_of(int(asked.ids[0]))
    assert str(error.value).startswith(
        "[labels] callable: net.py:breaks failed on 12 inputs of shape (1, 8, 8), the first is " + first
    )
    assert "KeyError: 'no such" in str(error.value)
    assert isinstance(error.value.__cause__.__cause__, KeyError)
    with pytest.raises(LabelsMissing, match="come back tomorrow"):
        user.build("[labels]\ncallable = 'net.py:later'").labeller(asked)


@pytest.mark.parametrize(("shape", "size"), [((1, 8, 8), (224, 224)), ((3, 28, 14), (112, 224)), ((1, 300, 200), None)])
def test_small_images_are_enlarged_for_people(tmp_path, shape, size):
    asked = Samples((torch.rand(2, *shape, generator=spawn(0, "x")) * 255).round() / 255)
    with pytest.raises(LabelsMissing, match=f"into {tmp_path}/mine.csv"):
        LabelFolder(folder=tmp_path, classes=3, table="mine.csv")(asked)
    for x, identity in zip(asked.x, asked.ids.tolist(), strict=True):
        with Image.open(tmp_path / f"{name_of(identity)}.png") as picture:
            assert picture.size == (size or (shape[2], shape[1]))
            small = picture.resize((shape[2], shape[1]), Image.Resampling.NEAREST)
            pixels = torch.from_numpy(np.asarray(small).copy()).reshape(*shape[1:], shape[0]).permute(2, 0, 1)
            assert torch.equal(pixels, (x * 255).round().to(torch.uint8))


# Classes that are called by numbers -----------------------------------------------------------------------------------

ONE_TO_THREE = ("1", "2", "3")


def named(n, classes=()):
    return Samples(
        torch.rand(n, 1, 4, 4, generator=spawn(0, "x")), names=[f"{i}.png" for i in range(n)], classes=classes
    )


def from_table(path, text, *, class_names=ONE_TO_THREE, asked=None):
    asked = named(3) if asked is None else asked
    (path / "known.csv").write_text(text)
    names = dict(zip(asked.names, asked.ids.tolist(), strict=True))
    return labels_from_table(path / "known.csv", classes=3, names=names, class_names=class_names)(asked).tolist()


@pytest.mark.parametrize("labels", [(1, 2, 2), (1, 2, 3), (0, 1, 2), (0, 0, 0), (3, 3, 3)])
@pytest.mark.parametrize("class_names", [ONE_TO_THREE, ("01", "02", "03"), ("1.0", "2.0", "3.0"), ("0", "2", "1")])
def test_a_label_that_may_be_a_number_or_a_name_is_rejected(tmp_path, labels, class_names):
    rows = "\n".join(f"{i}.png,{y}" for i, y in enumerate(labels))
    with pytest.raises(
        ValueError, match=r"line 2 of .*known.csv: '\d' may be the number of a class or its name \(0 is"
    ):
        from_table(tmp_path, f"name,label\n{rows}", class_names=class_names)
    with pytest.raises(ValueError, match="rename the column label to class if it has names, or to number if it has"):
        from_table(tmp_path, f"name,label\n{rows}", class_names=class_names)


@pytest.mark.parametrize("class_names", [ONE_TO_THREE, ("01", "02", "03"), ("1.0", "2.0", "3.0")])
def test_the_heading_says_whether_labels_are_names_or_numbers(tmp_path, class_names):
    rows = "0.png,1\n1.png,2.0\n2.png,01\n"  # as spreadsheets change them
    assert from_table(tmp_path, f"name,class\n{rows}", class_names=class_names) == [0, 1, 0]
    assert from_table(tmp_path, f"name,number\n{rows}", class_names=class_names) == [1, 2, 1]
    with pytest.raises(ValueError, match=r"line 4 of .*: a class must be the name of a class \(0?1.*3.*\), got '0'"):
        from_table(tmp_path, "name,class\n0.png,3\n1.png,3\n2.png,0\n", class_names=class_names)
    with pytest.raises(ValueError, match=r"line 3 of .*: a number must be a class \(0 for .*\), got '3'"):
        from_table(tmp_path, "name,number\n0.png,0\n1.png,3\n2.png,0\n", class_names=class_names)
    with pytest.raises(ValueError, match="one column of labels, got class and number"):
        from_table(tmp_path, "name,class,number\n0.png,1,0\n", class_names=class_names)


@pytest.mark.parametrize(
    ("class_names", "labels"),
    [
        (("0", "1", "2"), ("2", "0.0", "01")),
        (("00", "01", "02"), ("2", "0", "01")),
        (("cat", "dog", "7"), ("7", "CAT", "1")),  # no number means two classes
        (("v1", "v1.0", "cat"), ("cat", "v1", "v1.0")),
    ],
)
def test_numbers_and_names_mix_if_no_number_means_two_classes(tmp_path, class_names, labels):
    rows = "\n".join(f"{i}.png,{y}" for i, y in enumerate(labels))
    assert from_table(tmp_path, f"name,label\n{rows}", class_names=class_names) == [2, 0, 1]


@pytest.mark.parametrize("first", ["name,label", "file,label", "File;Label"])
def test_a_table_of_labels_calls_its_inputs_name_or_file(tmp_path, first):
    rows = "\n".join([first, "0.png,1", "1.png,2", "2.png,0"]).replace(",", ";" if ";" in first else ",")
    assert from_table(tmp_path, rows, class_names=()) == [1, 2, 0]
    assert note_on_unused_rows(tmp_path / "known.csv", {f"{i}.png": i for i in range(3)}) == ""
    with pytest.raises(ValueError, match="must be name,label, got 'picture,label'; replace it"):
        from_table(tmp_path, "picture,label\n0.png,1\n", class_names=())


def test_a_label_that_is_the_name_of_two_classes_is_rejected(tmp_path):
    names = ("Cat", "cat", "dog")
    with pytest.raises(ValueError, match="'CAT' may be Cat and cat; write numbers .0 for Cat, 1 for cat, 2 for dog"):
        from_table(tmp_path, "name,label\n0.png,CAT\n", class_names=names)
    assert from_table(tmp_path, "name,label\n0.png,1\n1.png,dog\n2.png,0\n", class_names=names) == [1, 2, 0]


def test_a_column_of_class_names_needs_names(tmp_path):
    with pytest.raises(ValueError, match="names of the 3 classes are unknown; name them all, or write their numbers"):
        from_table(tmp_path, "name,class\n0.png,1\n1.png,2\n2.png,1\n", class_names=())


@pytest.mark.parametrize(
    ("class_names", "header"),
    [
        (ONE_TO_THREE, "name,class"),
        (("0", "1", "2"), "name,label"),
        (("cat", "dog", "7"), "name,label"),
        (("1", "01", "cat"), "name,number"),  # a spreadsheet makes 1 of 01
        (("1", "2", ""), "name,number"),
    ],
)
@pytest.mark.parametrize("shown", [(), ("0", "1", "2"), ("2", "3", "1"), ("a", "b", "c")])
def test_the_page_writes_what_is_read_back(tmp_path, class_names, header, shown):
    """Also if the page shows other names than the folder has."""
    asked = named(3, class_names)
    ask = LabelFolder(folder=tmp_path, classes=3)  # the inputs bring the names
    with pytest.raises(LabelsMissing, match="3 of 3"):
        ask(asked)
    assert (tmp_path / "labels.csv").read_text().splitlines()[0] == header
    desk = LabelDesk(tmp_path, classes=shown)
    assert [name for _, name in desk.about()["classes"]] == list(shown or class_names)
    for row, label in enumerate((2, 0, 1)):
        assert desk.mark(RequestFields({"row": row, "label": label}))["given"] == label
    assert ask(asked).tolist() == [2, 0, 1]
    assert [y for _, y in ask.stored(asked.ids).values()] == [2, 0, 1]
    names = dict(zip(asked.names, asked.ids.tolist(), strict=True))
    table = labels_from_table(tmp_path / "labels.csv", classes=3, names=names, class_names=class_names)
    assert table(asked).tolist() == [2, 0, 1]


def test_people_are_asked_for_names_if_classes_are_called_by_other_numbers(tmp_path):
    asked = named(3, ONE_TO_THREE)
    ask = LabelFolder(folder=tmp_path, classes=3, names=ONE_TO_THREE)
    with pytest.raises(LabelsMissing, match=r"each one's class \(1, 2, 3\) into"):
        ask(asked)
    table = tmp_path / "labels.csv"
    table.write_text("name,class\n0.png,1\n1.png,3\n2.png,\n")
    with pytest.raises(LabelsMissing, match=r"1 of 3 inputs .* \(1, 2, 3\) into"):
        ask(asked)
    ask.set_label("2", 1)
    assert ask(asked).tolist() == [0, 2, 1]
    table.write_text("name,label\n0.png,\n1.png,\n2.png,\n")  # of an earlier version
    with pytest.raises(ValueError, match="rename the column label to class"):
        ask.set_label("2", 1)


def test_a_page_must_name_every_class_of_the_folder(tmp_path):
    with pytest.raises(LabelsMissing):
        LabelFolder(folder=tmp_path, classes=3, names=ONE_TO_THREE)(named(3))
    with pytest.raises(ValueError, match="a name for each of the 3 classes in .*, got 2"):
        LabelDesk(tmp_path, classes=("a", "b"))


# Rows that contradict each other --------------------------------------------------------------------------------------


def test_two_rows_for_one_input_must_agree(pictures):
    for rows, sentence in (
        (("mon/Img_1.png,1", "field/mon/Img_1.png,2"), "in the rows field/mon/Img_1.png and mon/Img_1.png; leave one"),
        (("mon/Img_1.png,1", "mon/img_1,2"), "mon/img_1 has two different labels, in line 2 of .* and in line 3 of"),
    ):
        with pytest.raises(ValueError, match=sentence):
            (job := pictures(*rows)).labeller(job.field(0)[:2])
    job = pictures("mon/Img_1.png,1", "field/mon/Img_1.png,1", "mon/Img_1.png,", "mon/Img_2.png,", "mon/Img_2.png,2")
    assert job.labeller(job.field(0)[:2]).tolist() == [1, 2]


def test_rows_by_name_and_by_id_must_agree(tmp_path):
    asked = named(3)
    ask = LabelFolder(folder=tmp_path, classes=3)
    with pytest.raises(LabelsMissing):
        ask(asked)
    identity = name_of(int(asked.ids[1]))
    (tmp_path / "labels.csv").write_text(f"name,label\n0,0\n1,1\n2,2\n{identity},2\n")
    with pytest.raises(ValueError, match=f"{identity} has two different labels, in the row 1 of .* the row {identity}"):
        ask(asked)
    (tmp_path / "labels.csv").write_text(f"name,label\n0,0\n1,1\n2,2\n{identity},\n")
    assert ask(asked).tolist() == [0, 1, 2]


def test_a_row_that_belongs_to_an_input_is_not_read_for_another_of_that_name(tmp_path):
    """The first was called 0 in the folder; then its file was replaced by another of that name."""
    first, second = named(1), Samples(torch.zeros(1, 1, 4, 4), names=["tue/0.png"])
    ask = LabelFolder(folder=tmp_path, classes=3)
    with pytest.raises(LabelsMissing):
        ask(Samples.concat([first, second]))
    (tmp_path / "labels.csv").write_text("name,label\n0.png,1\ntue_0.png,2\n")
    ids = {"tue/0.png": int(second.ids[0])}
    assert labels_from_table(tmp_path / "labels.csv", classes=3, names=ids)(second).tolist() == [2]


def test_a_table_of_labels_is_parsed_once_per_request(tmp_path, monkeypatch):
    parsed = []
    monkeypatch.setattr(label_folder, "read_csv", lambda path: parsed.append(path) or read_csv(path))
    assert from_table(tmp_path, "name,label\n0.png,0\n1.png,2\n2.png,1\n", class_names=()) == [0, 2, 1]
    assert len(parsed) == 1


# Names of inputs ------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.sampled_from(["a", "b", "A.png"]), min_size=1, max_size=3), max_size=6))
def test_whole_names_work_and_no_ending_fits_two_inputs(parts):
    names = list(dict.fromkeys("/".join(each) for each in parts))
    keys = [[table_key(ending) for ending in endings] for endings in unambiguous_endings(names)]
    whole = [table_key(name) for name in names]
    for name, each in zip(whole, keys, strict=True):
        assert (name in each) == (whole.count(name) == 1)
    every = [key for each in keys for key in each]
    assert len(every) == len(set(every))


def test_an_input_whose_name_is_the_end_of_another_can_be_labelled(tmp_path):
    asked = Samples(torch.rand(2, 3, generator=spawn(0)), names=["1.png", "tue/1.png"])
    assert from_table(tmp_path, "name,label\n1.png,0\ntue/1.png,2\n", class_names=(), asked=asked) == [0, 2]


# Pipes ----------------------------------------------------------------------------------------------------------------


def test_a_pipe_in_place_of_a_file_is_an_error(tmp_path):
    """Reading it would wait for ever."""
    for name in ("inputs.json", "labels.csv", "groups.csv"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / name)
    for folder in ("inputs.json", "labels.csv"):
        with pytest.raises(ValueError, match=f"{folder} must be a regular file"):
            LabelFolder(folder=tmp_path / folder, classes=3)(named(2))
    with pytest.raises(ValueError, match=r"groups.csv must be a regular file"):
        with_groups(named(2), tmp_path / "groups.csv" / "groups.csv")


# Faulty rows and rows of no input -------------------------------------------------------------------------------------


FAULTY = "name,label\n0.png,cow\n1.png,12\n2.png,1\n2.png,2\n3.png,x\n4.png,1\n5.png,-1\nghost.png,2\n"


@pytest.fixture
def faulty(tmp_path):
    """A folder of six inputs to label; the table has five faulty labels and a row of no input."""
    ask = LabelFolder(folder=tmp_path / "to_label", classes=3)
    with pytest.raises(LabelsMissing):
        ask(named(6))
    (ask.folder / "labels.csv").write_text(FAULTY)
    return ask


def test_all_faulty_rows_are_in_one_message(faulty):
    with pytest.raises(ValueError, match="^5 labels in .*labels.csv are faulty: ") as error:
        faulty(named(6))
    message = str(error.value)
    for part in ("line 2 of", "got 'cow'; line 3 of", "got '12'; 2 has two different labels", "leave one; and 2 more"):
        assert part in message
    assert "'-1'" not in message  # the message stays short


def test_the_page_opens_with_faulty_rows_and_mends_them(faulty):
    desk = LabelDesk(faulty.folder)
    state = desk.state(RequestFields({}))
    assert (state["tests"], state["labelled"], desk.counts()) == (6, 1, (1, 6))
    assert "5 labels in" in state["notes"][0]
    assert "1 of 7 rows are ignored, since they name no input that was asked for (ghost)" in state["notes"][1]
    for row in (0, 1, 2, 3, 5):
        desk.mark(RequestFields({"row": row, "label": 2}))
    assert desk.state(RequestFields({}))["notes"] == state["notes"][1:]
    assert faulty(named(6)).tolist() == [2, 2, 2, 2, 1, 2]


def test_a_row_of_no_input_is_no_input_to_label(tmp_path):
    """Whatever inputs are called: by files, or by ids."""
    for i, asked in enumerate((named(4), Samples(named(4).x))):
        ask = LabelFolder(folder=tmp_path / str(i), classes=3)
        with pytest.raises(LabelsMissing):
            ask(asked)
        assert ask.note_on_unused_rows() == ""
        with (ask.folder / "labels.csv").open("a") as table:
            table.write("ghost.png,2\nlabels,1\n")
        desk = LabelDesk(ask.folder)
        assert desk.about()["tests"] == desk.arrange(RequestFields({}))["total"] == 4
        assert desk.counts() == (0, 4)
        assert "2 of 6 rows are ignored" in ask.note_on_unused_rows()
