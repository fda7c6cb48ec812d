"""Labels from a file, a table, a function or a folder."""

import numpy as np
import pytest
import torch
from PIL import Image

from operant import Samples, spawn
from operant.campaign.build import CampaignJob
from operant.data import LabelFolder, LabelsMissing
from operant.data.samples import name_of


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
        with pytest.raises(LabelsMissing, match=f"1 of 2 inputs have no label .* rows such as {name},3"):
            job.labeller(job.field(0)[[row, 2]])


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
    job = user.build("[labels]\nfile = 'labels.npz'")
    with pytest.raises(ValueError) as error:
        job.labeller(job.field(0))
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
