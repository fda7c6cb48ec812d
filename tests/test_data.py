"""Samples and their laws; every file format written here and read back; damaged files rejected by name."""

import gzip
import io
import os
import pickle
import pickletools
import re
import signal
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import loadmat, savemat

from operant.data import (
    Samples,
    content_ids,
    formats,
    load,
    load_digits,
    samples_from_folder,
    samples_from_npz,
    sources,
)
from operant.data.formats import read_cifar_binary, read_cifar_python, read_idx, read_image_folder, read_npz, read_svhn
from operant.data.matlab import numeric_arrays
from operant.files import MAX_BYTES, VARIABLE, check_picture_bytes, check_unpacked

SHAPES = [(5,), (1, 8, 8), (3, 4, 4)]
quick = settings(max_examples=25)


def random_samples(n, shape=(4,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Samples(torch.rand(n, *shape, generator=generator), torch.randint(10, (n,), generator=generator))


# Samples --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_follow_their_rows(shape, generator):
    x = torch.rand(40, *shape, generator=generator)
    order = torch.randperm(40, generator=generator)
    assert torch.equal(Samples(x[order]).ids, Samples(x).ids[order])
    assert len(Samples(x).ids.unique()) == 40


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_depend_on_values_and_shape_alone(shape, generator):
    x = torch.rand(12, *shape, generator=generator)
    assert torch.equal(content_ids(x), content_ids(x.double()))
    assert torch.equal(content_ids(x.flip(-1).flip(-1)), content_ids(x))
    assert torch.equal(content_ids(torch.zeros(3, *shape)), content_ids(-torch.zeros(3, *shape)))
    assert not set(content_ids(x).tolist()) & set(content_ids(x.unsqueeze(1)).tolist())


def test_one_changed_value_changes_one_id(generator):
    x = torch.rand(10, 3, 4, generator=generator)
    changed = x.clone()
    changed[4, 2, 3] += 1e-3
    assert (content_ids(x) != content_ids(changed)).nonzero().flatten().tolist() == [4]


@quick
@given(n=st.integers(0, 60), seed=st.integers(0, 2**31), share=st.floats(0.05, 0.9))
def test_split_deals_every_input_once_and_for_all(n, seed, share):
    pool, more = random_samples(n, seed=seed), random_samples(30, seed=seed + 1)
    roles = {"profile": share, "seeds": (1 - share) / 2, "assessment": (1 - share) / 2}
    parts, later = pool.split(**roles), Samples.concat([more, pool]).split(**roles)
    assert sorted(i for part in parts.values() for i in part.ids.tolist()) == sorted(pool.ids.tolist())
    for role, part in parts.items():
        assert set(part.ids.tolist()) == set(later[role].ids.tolist()) - set(more.ids.tolist())
        assert torch.equal(content_ids(part.x), part.ids)


@quick
@given(start=st.integers(-(2**40), 2**40), share=st.floats(0.1, 0.9))
def test_shares_of_a_split_are_met_even_for_consecutive_ids(start, share):
    n = 4000
    pool = Samples(torch.zeros(n, 1), ids=torch.arange(start, start + n))
    dealt = len(pool.split(seeds=share, rest=1 - share)["seeds"])
    assert abs(dealt - n * share) < 5 * (n * share * (1 - share)) ** 0.5


def test_a_part_can_be_split_again_in_the_shares_asked_for():
    pool = Samples(torch.zeros(20000, 1), ids=torch.arange(20000))
    train = pool.split(train=0.75, test=0.25)["train"]
    for roles in ({"training": 0.9, "validation": 0.1}, {"validation": 0.1, "training": 0.9}):
        assert len(train.split(**roles)["validation"]) == pytest.approx(1500, abs=150)


def test_equal_inputs_are_dealt_to_one_role(generator):
    x = torch.rand(50, 6, generator=generator)
    parts = Samples(torch.cat([x, x, x])).split(a=0.5, b=0.5)
    assert not set(parts["a"].ids.tolist()) & set(parts["b"].ids.tolist())
    assert len(parts["a"]) % 3 == 0
    assert 0 < len(parts["a"]) < 150


@quick
@given(st.lists(st.booleans(), min_size=9, max_size=9))
def test_mask_positions_and_numpy_choose_the_same_rows(mask):
    pool = random_samples(9)
    positions = [i for i, chosen in enumerate(mask) if chosen]
    for index in (mask, torch.tensor(mask), np.array(mask), positions, torch.tensor(positions, dtype=torch.long)):
        chosen = pool[index]
        assert torch.equal(chosen.x, pool.x[positions])
        assert torch.equal(chosen.labels, pool.labels[positions])
        assert torch.equal(chosen.ids, pool.ids[positions])


def test_slices_keep_labels_and_given_ids():
    pool = Samples(torch.rand(6, 2), torch.arange(6), torch.arange(100, 106))
    assert pool[1:6:2].ids.tolist() == [101, 103, 105]
    assert pool[-2:].labels.tolist() == [4, 5]
    assert pool[[-1, 0]].ids.tolist() == [105, 100]
    assert len(pool[:0]) == 0
    assert pool[:0].shape == (2,)


@pytest.mark.parametrize(
    ("index", "error", "sentence"),
    [
        (3, TypeError, "single index 3"),
        ([0.5, 1.0], TypeError, "got torch.float32"),
        ([[0, 1], [2, 3]], TypeError, "shape (2, 2)"),
        ([True, False], IndexError, "2 entries for 5 rows"),
        ([7], IndexError, "out of bounds"),
    ],
)
def test_indices_that_choose_no_rows_are_rejected(index, error, sentence):
    with pytest.raises(error) as caught:
        random_samples(5)[index]
    assert sentence in str(caught.value)


def test_concat_is_undone_by_slicing():
    a, b = random_samples(5, seed=1), random_samples(7, seed=2)
    both = Samples.concat([a, b])
    for part, again in ((a, both[:5]), (b, both[5:])):
        assert torch.equal(part.x, again.x)
        assert torch.equal(part.labels, again.labels)
        assert torch.equal(part.ids, again.ids)
    assert Samples.concat([a, Samples(b.x)]).y is None


def test_labels_of_any_integer_type_become_int64():
    for kind in (np.uint8, np.uint16, np.int32, np.int64):
        assert Samples(torch.rand(3, 2), np.array([0, 2, 1], dtype=kind)).labels.dtype == torch.int64
    assert Samples(torch.rand(3, 2), [0, 2, 1]).labels.tolist() == [0, 2, 1]


X = torch.rand(4, 3)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Samples(X.numpy()), "got a ndarray"),
        (lambda: Samples(X.mul(255).byte()), "got a tensor of torch.uint8"),
        (lambda: Samples(X[0]), "must have shape (N, *shape), got (3,)"),
        (lambda: Samples(X, torch.rand(4)), "labels must be integers of shape (4,), got torch.float32"),
        (lambda: Samples(X, torch.ones(4, dtype=torch.bool)), "got torch.bool"),
        (lambda: Samples(X, torch.zeros(3, dtype=torch.long)), "got torch.int64 of shape (3,)"),
        (lambda: Samples(X, torch.zeros(4, 1, dtype=torch.long)), "got torch.int64 of shape (4, 1)"),
        (lambda: Samples(X, torch.tensor([0, 1, -1, 2])), "labels must be 0 or more, got -1"),
        (lambda: Samples(X, ids=torch.arange(3)), "ids must be int64 of shape (4,)"),
        (lambda: Samples(X, ids=torch.rand(4)), "ids must be int64 of shape (4,), got torch.float32"),
        (lambda: Samples(X).labels, "carry no labels"),
        (lambda: Samples(X).split(), "shares of the roles"),
        (lambda: Samples(X).split(a=0.5, b=0.4), "sum to 1"),
        (lambda: Samples(X).split(a=1.5, b=-0.5), "must be positive"),
        (lambda: Samples(X).split(a=float("nan"), b=0.5), "must be positive"),
        (lambda: Samples.concat([]), "at least one Samples"),
        (lambda: Samples.concat([Samples(X), Samples(X[:, :2])]), "one shape, got [(2,), (3,)]"),
        (lambda: load_digits(size=7), "size must be at least 8"),
        (lambda: load("imagenet", "."), "name must be one of mnist, fashion-mnist, cifar10, svhn, usps"),
    ],
)
def test_bad_input_is_rejected_with_a_sentence(build, sentence):
    with pytest.raises(ValueError) as caught:
        build()
    assert sentence in str(caught.value)


# The embedded digits --------------------------------------------------------------------------------------------------


def test_digits_are_all_there_and_never_on_both_sides():
    digits = load_digits()
    assert len(digits.train) + len(digits.test) == 1797
    assert 0.17 < len(digits.test) / 1797 < 0.23
    assert not set(digits.train.ids.tolist()) & set(digits.test.ids.tolist())
    for part in (digits.train, digits.test):
        assert part.shape == (1, 8, 8)
        assert part.x.dtype == torch.float32
        assert float(part.x.min()) == 0
        assert float(part.x.max()) == 1
        assert part.labels.unique().tolist() == list(range(10)) == [int(name) for name in digits.classes]


def test_enlarged_digits_keep_their_split_and_range():
    small, large = load_digits(), load_digits(size=28)
    for a, b in ((small.train, large.train), (small.test, large.test)):
        assert b.shape == (1, 28, 28)
        assert torch.equal(a.labels, b.labels)
        assert float(b.x.min()) >= 0
        assert float(b.x.max()) <= 1
        assert torch.allclose(b.x.mean((1, 2, 3)), a.x.mean((1, 2, 3)), atol=0.02)
    assert not set(large.train.ids.tolist()) & set(large.test.ids.tolist())
    assert torch.equal(load_digits().train.ids, small.train.ids)


# Writers, one per format ----------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
GREY = {part: RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8) for part, n in (("train", 7), ("test", 4))}
COLOUR = RNG.integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)  # six batches of two images
LABELS = {"train": np.arange(7) % 5, "test": np.array([9, 0, 3, 3])}
BATCH_LABELS = np.arange(12).reshape(6, 2) % 10


def idx_bytes(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_idx_set(folder, *, compress=False):
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, part in (("train", "train"), ("t10k", "test")):
        for name, array in (("images-idx3", GREY[part]), ("labels-idx1", LABELS[part])):
            content = idx_bytes(array)
            file = folder / f"{prefix}-{name}-ubyte{'.gz' if compress else ''}"
            file.write_bytes(gzip.compress(content) if compress else content)


def write_npz_set(file):
    np.savez(file, **{f"x_{p}": GREY[p] for p in GREY}, **{f"y_{p}": LABELS[p].astype(np.uint8) for p in GREY})


def cifar_rows(images):
    """Red, green and blue planes one after the other, as CIFAR keeps them."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), -1))


def cifar_binary_bytes(images, labels):
    return np.concatenate([labels[:, None].astype(np.uint8), cifar_rows(images)], 1).tobytes()


def cifar_page(images, labels):
    names = [b"a_s_%06d.png" % i for i in range(len(labels))]
    return {b"batch_label": b"a batch", b"labels": labels.tolist(), b"data": cifar_rows(images), b"filenames": names}


def python2_pickle(images, labels):
    """The opcodes Python 2 writes for {'data': array, 'labels': list} in protocol 2."""
    rows = cifar_rows(images)
    values = rows.tobytes()
    return b"".join(
        [
            b"\x80\x02}q\x01(U\x04dataq\x02",
            b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05",
            b"(K\x01", b"".join(b"M" + struct.pack("<H", n) for n in rows.shape), b"\x86",
            b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T", struct.pack("<i", len(values)), values, b"tb",
            b"U\x06labelsq\x08]q\x09(", b"".join(b"K" + bytes([n]) for n in labels), b"eu.",
        ]
    )  # fmt: skip


def write_cifar_set(folder, suffix, encode):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        (folder / f"{name}{suffix}").write_bytes(encode(COLOUR[i], BATCH_LABELS[i]))


def write_svhn(file, images, labels, **options):
    savemat(file, {"X": images.transpose(1, 2, 3, 0), "y": np.where(labels == 0, 10, labels)[:, None]}, **options)


def write_picture(file, pixels):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def assert_grey_set(dataset):
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        assert samples.x.dtype == torch.float32
        assert torch.equal(samples.x, torch.from_numpy(GREY[part]).float().unsqueeze(1) / 255)
        assert samples.labels.tolist() == LABELS[part].tolist()
    assert len(dataset.classes) == 10


def assert_colour_set(dataset):
    expected = torch.from_numpy(COLOUR).permute(0, 1, 4, 2, 3).float() / 255
    assert torch.equal(dataset.train.x, expected[:5].flatten(0, 1))
    assert torch.equal(dataset.test.x, expected[5])
    assert dataset.train.labels.tolist() == BATCH_LABELS[:5].flatten().tolist()
    assert dataset.test.labels.tolist() == BATCH_LABELS[5].tolist()


# Round trips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "usps"])
@pytest.mark.parametrize("place", ["{}.npz", "{}/{}.npz"])
def test_load_reads_npz(tmp_path, name, place):
    file = tmp_path / place.format(name, name)
    file.parent.mkdir(exist_ok=True)
    write_npz_set(file)
    assert_grey_set(load(name, tmp_path))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "."), ("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")],
)
def test_load_reads_idx(tmp_path, name, folder, compress):
    write_idx_set(tmp_path / folder, compress=compress)
    assert_grey_set(load(name, tmp_path))


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path, monkeypatch):
    assert Path("/usr/share/datasets/fashion-mnist") == sources.DEBIAN_FASHION_MNIST
    monkeypatch.setattr(sources, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    write_idx_set(tmp_path / "debian", compress=True)
    assert_grey_set(load("fashion-mnist", tmp_path / "empty"))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_load_reads_cifar_python_batches(tmp_path, folder, protocol):
    write_cifar_set(tmp_path / folder, "", lambda x, y: pickle.dumps(cifar_page(x, y), protocol))
    assert_colour_set(load("cifar10", tmp_path))


def test_load_reads_cifar_batches_of_python_2(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy.core has moved since
        page = pickle.loads(python2_pickle(COLOUR[0], BATCH_LABELS[0]), encoding="bytes")
    assert np.array_equal(page[b"data"], cifar_rows(COLOUR[0])), "Python's own reader must agree with the writer above"
    write_cifar_set(tmp_path, "", python2_pickle)
    assert_colour_set(load("cifar10", tmp_path))


def test_load_reads_cifar_binary(tmp_path):
    write_cifar_set(tmp_path / "cifar-10-batches-bin", ".bin", cifar_binary_bytes)
    assert_colour_set(load("cifar10", tmp_path))


@pytest.mark.parametrize("compressed", [False, True])
def test_load_reads_svhn(tmp_path, compressed):
    train, labels = COLOUR[:5].reshape(-1, 32, 32, 3), BATCH_LABELS[:5].flatten()
    write_svhn(tmp_path / "train_32x32.mat", train, labels, do_compression=compressed)
    write_svhn(tmp_path / "test_32x32.mat", COLOUR[5], BATCH_LABELS[5], do_compression=compressed)
    assert read_svhn(tmp_path / "train_32x32.mat").y.tolist() == labels.tolist()
    assert_colour_set(load("svhn", tmp_path))


def test_svhn_as_npz_may_call_its_zeros_ten(tmp_path):
    x, y = COLOUR[:5].reshape(-1, 32, 32, 3), BATCH_LABELS[:5].flatten()
    labels = {"y_train": np.where(y == 0, 10, y)[:, None], "y_test": BATCH_LABELS[5]}
    np.savez(tmp_path / "svhn.npz", x_train=x, x_test=COLOUR[5], **labels)
    assert_colour_set(load("svhn", tmp_path))


@pytest.mark.parametrize("code", ["u1", "i1", ">i2", ">i4", ">f4", ">f8"])
def test_idx_of_every_type_and_rank(tmp_path, code):
    types = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}
    for shape in [(6,), (2, 3), (2, 3, 4)]:
        array = RNG.integers(0, 100, shape).astype(code)
        header = bytes([0, 0, types[code], len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        (tmp_path / "file").write_bytes(header + array.tobytes())
        again = read_idx(tmp_path / "file")
        assert np.array_equal(again, array)
        assert again.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("dtype", [">u2", "<i4", ">f8", "<f4", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickled_arrays_of_any_number_type_come_back(dtype, order):
    array = np.asarray(RNG.integers(0, 2, (3, 4)), dtype=dtype, order=order)
    page = {
        "a": array,
        "again": array,
        "other": array.astype("<f2"),
        "list": [1, -2, 300000, 2**40, 0.5, None, True, "é"],
    }
    for protocol in (2, 3, 4):
        again = formats._unpickled(pickle.dumps(page, protocol))
        assert all(
            np.array_equal(again[k], page[k]) and again[k].dtype == page[k].dtype for k in ("a", "again", "other")
        )
        assert again["list"] == page["list"]


def test_image_folder_gives_sorted_classes_in_grey(tmp_path):
    pixels = RNG.integers(0, 256, (5, 6, 9), dtype=np.uint8)
    for file, p in zip(["dog/2.png", "dog/1.bmp", "cat/b.png", "cat/a.pgm", "owl/x.PNG"], pixels, strict=True):
        write_picture(tmp_path / file, p)
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    (tmp_path / ".cache").mkdir()
    images = read_image_folder(tmp_path)
    assert images.classes == ("cat", "dog", "owl")
    assert images.y.tolist() == [0, 0, 1, 1, 2]
    samples = samples_from_folder(tmp_path)
    assert torch.equal(samples.x, torch.from_numpy(pixels[[3, 2, 1, 0, 4]]).unsqueeze(1).float() / 255)
    assert samples.labels.tolist() == [0, 0, 1, 1, 2]


def test_one_colour_picture_makes_the_folder_colour(tmp_path):
    grey, colour = RNG.integers(0, 256, (6, 9), dtype=np.uint8), RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    write_picture(tmp_path / "a" / "grey.png", grey)
    write_picture(tmp_path / "b" / "colour.png", colour)
    opaque = np.concatenate([colour, np.full((6, 9, 1), 255, dtype=np.uint8)], 2)
    write_picture(tmp_path / "b" / "opaque.png", opaque)
    x = read_image_folder(tmp_path).x
    assert x.shape == (3, 3, 6, 9)
    assert np.array_equal(x[0], np.stack([grey] * 3))
    assert np.array_equal(x[1], colour.transpose(2, 0, 1))
    assert np.array_equal(x[1], x[2])


def test_pictures_are_resized_on_request(tmp_path):
    for i, shape in enumerate([(8, 8), (16, 20), (5, 7)]):
        write_picture(tmp_path / "a" / f"{i}.png", np.full(shape, 40 * (i + 1), dtype=np.uint8))
    x = read_image_folder(tmp_path, size=(6, 10)).x
    assert x.shape == (3, 1, 6, 10)
    assert [np.unique(p).tolist() for p in x] == [[40], [80], [120]]


def test_npz_of_ones_own(tmp_path):
    table = RNG.normal(size=(6, 4)) * 100
    np.savez(tmp_path / "table.npz", x=table, y=np.arange(6))
    samples = samples_from_npz(tmp_path / "table.npz")
    assert torch.equal(samples.x, torch.from_numpy(table).float())
    assert samples.labels.tolist() == list(range(6))
    np.savez(tmp_path / "images.npz", x=COLOUR[0])
    samples = samples_from_npz(tmp_path / "images.npz")
    assert samples.shape == (3, 32, 32)
    assert samples.y is None
    assert float(samples.x.max()) <= 1


def test_float_images_may_have_channels_first(tmp_path):
    x = RNG.random((4, 3, 8, 8))
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=np.arange(4), x_test=x[:2], y_test=np.arange(2))
    assert torch.equal(load("cifar10", tmp_path).train.x, torch.from_numpy(x).float())


# Damaged files --------------------------------------------------------------------------------------------------------


def rejection(read, file):
    """The sentence with which a file is rejected; it must name the file and say what to do."""
    with pytest.raises(ValueError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert ";" in str(caught.value), "what to do comes after a semicolon"
    return str(caught.value)


def read_picture(file):
    return read_image_folder(file.parent.parent)


def sound_files(folder):
    """One sound file of each format, and its reader."""
    files = {
        "a.npz": read_npz, "idx": read_idx, "idx.gz": read_idx, "batch.bin": read_cifar_binary,
        "batch": read_cifar_python, "batch2": read_cifar_python, "plain.mat": read_svhn, "packed.mat": read_svhn,
    }  # fmt: skip
    np.savez_compressed(folder / "a.npz", x=GREY["train"])
    (folder / "idx").write_bytes(idx_bytes(GREY["test"]))
    (folder / "idx.gz").write_bytes(gzip.compress(idx_bytes(GREY["test"])))
    (folder / "batch.bin").write_bytes(cifar_binary_bytes(COLOUR[0], BATCH_LABELS[0]))
    (folder / "batch").write_bytes(pickle.dumps(cifar_page(COLOUR[0], BATCH_LABELS[0]), 4))
    (folder / "batch2").write_bytes(python2_pickle(COLOUR[0], BATCH_LABELS[0]))
    write_svhn(folder / "plain.mat", COLOUR[0], BATCH_LABELS[0])
    write_svhn(folder / "packed.mat", COLOUR[0], BATCH_LABELS[0], do_compression=True)
    write_picture(folder / "pictures" / "a" / "x.png", GREY["train"][0])
    write_picture(folder / "photos" / "a" / "x.jpg", COLOUR[0, 0])
    files |= {"pictures/a/x.png": read_picture, "photos/a/x.jpg": read_picture}
    return {folder / name: read for name, read in files.items()}


def test_truncated_files_are_rejected_wherever_they_were_cut(tmp_path):
    for file, read in sound_files(tmp_path).items():
        content = file.read_bytes()
        read(file)
        for length in {0, 1, 3, 11, 100, *range(0, len(content) - 16, len(content) // 23), len(content) - 16}:
            if length != 3073:  # CIFAR's binary form has no header: whole records are a sound file
                file.write_bytes(content[:length])
                rejection(read, file)


def test_foreign_files_are_rejected(tmp_path):
    contents = [
        b"hello, this is no data\n" * 40,
        bytes(range(256)) * 9,
        b"\x1f\x8b" + b"x" * 50,
        b"PK\x03\x04" + b"x" * 80,
    ]
    for file, read in sound_files(tmp_path).items():
        for content in contents:
            file.write_bytes(content)
            rejection(read, file)


def test_checksums_find_changed_bytes(tmp_path):
    files = sound_files(tmp_path)
    for name in ("a.npz", "idx.gz", "packed.mat", "pictures/a/x.png"):
        file, content = tmp_path / name, bytearray((tmp_path / name).read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
        rejection(files[file], file)


def test_announced_and_actual_sizes_must_agree(tmp_path):
    np.savez(tmp_path / "a.npz", x=GREY["train"])
    content = (tmp_path / "a.npz").read_bytes()
    assert content.count(b"(7, 28, 28)") == 1
    (tmp_path / "a.npz").write_bytes(content.replace(b"(7, 28, 28)", b"(6, 28, 28)"))
    assert "fails the checksum" in rejection(read_npz, tmp_path / "a.npz")
    (tmp_path / "idx").write_bytes(idx_bytes(GREY["test"]) + b"\0")
    assert "announces 3152 bytes, it has 3153" in rejection(read_idx, tmp_path / "idx")


def test_missing_files_are_reported_as_missing(tmp_path):
    for read in (read_npz, read_idx, read_cifar_binary, read_cifar_python, read_svhn, read_image_folder):
        with pytest.raises(FileNotFoundError, match="nothing here"):
            read(tmp_path / "nothing here")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_none_are_rejected(tmp_path, bad):
    x = RNG.random((4, 3))
    x[2, 1] = bad
    np.savez(tmp_path / "a.npz", x=x)
    assert "NaN or infinity in x" in rejection(samples_from_npz, tmp_path / "a.npz")
    (tmp_path / "idx").write_bytes(bytes([0, 0, 14, 2, 0, 0, 0, 4, 0, 0, 0, 3]) + x.astype(">f8").tobytes())
    if not np.isfinite(bad):
        assert "NaN or infinity" in rejection(read_idx, tmp_path / "idx")


def test_npz_with_python_objects_is_rejected(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}, None]))
    assert "allow_pickle=False" in rejection(read_npz, tmp_path / "a.npz")
    np.save(tmp_path / "single.npy", GREY["test"])
    rejection(read_npz, tmp_path / "single.npy")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x_train": GREY["train"].astype(np.int64)}, "must be uint8, or float in [0, 1], got int64"),
        ({"x_train": GREY["train"].astype(np.float32)}, "got floats from 0 to 255"),
        ({"x_train": GREY["train"][:0], "y_train": LABELS["train"][:0]}, "got shape (0, 1, 28, 28)"),
        ({"x_train": GREY["train"].reshape(7, -1)}, "got shape (7, 784)"),
        ({"x_train": GREY["train"][:, :20]}, "images of one shape"),
        ({"y_train": LABELS["test"]}, "must be 7 integer labels"),
        ({"y_train": LABELS["train"] + 0.0}, "got float64"),
        ({"y_train": LABELS["train"] - 1}, "labels of 0 or more, got -1"),
        ({"y_train": LABELS["train"] + 6}, "must hold labels 0..9 for mnist, got 10"),
        ({"y_test": None}, "must hold x_test and y_test, got ['x_test', 'x_train', 'y_train']"),
    ],
)
def test_npz_sets_with_wrong_arrays_are_rejected(tmp_path, change, sentence):
    arrays = {f"{k}_{p}": v for p in GREY for k, v in (("x", GREY[p]), ("y", LABELS[p]))} | change
    np.savez(tmp_path / "mnist.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(ValueError) as caught:
        load("mnist", tmp_path)
    assert sentence in str(caught.value)
    assert str(tmp_path / "mnist.npz") in str(caught.value)


def test_npz_of_ones_own_needs_an_x(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.ones((3, 2)))
    assert "must hold x (N, *shape)" in rejection(samples_from_npz, tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.ones((2,), dtype=np.int64))
    assert "must be 3 integer labels" in rejection(samples_from_npz, tmp_path / "a.npz")


def test_cifar_batches_with_wrong_content_are_rejected(tmp_path):
    page = cifar_page(COLOUR[0], BATCH_LABELS[0])
    wrong = {
        "holds a list": [1, 2],
        "not data and labels": {b"data": page[b"data"]},
        "got uint8 of shape (2, 3071)": page | {b"data": page[b"data"][:, 1:].copy()},
        "got float32": page | {b"data": page[b"data"].astype(np.float32)},
        "got a list": page | {b"data": [1, 2]},
        "must be 2 integer labels": page | {b"labels": [1]},
        "must be integers": page | {b"labels": [1, "2"]},
        "must be 0..9, got 17": page | {b"labels": [1, 17]},
    }
    for sentence, content in wrong.items():
        (tmp_path / "batch").write_bytes(pickle.dumps(content, 2))
        assert sentence in rejection(read_cifar_python, tmp_path / "batch")
    (tmp_path / "batch.bin").write_bytes(cifar_binary_bytes(COLOUR[0], np.array([3, 10])))
    assert "must be 0..9, got 10" in rejection(read_cifar_binary, tmp_path / "batch.bin")


class Harmful:
    """Makes a folder when Python's own unpickler reads it."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def harmful_pickles(folder):
    """Pickles that would make `folder`, each by another way to have a function called."""
    name, module = str(folder).encode(), os.mkdir.__module__.encode()
    command = b"__import__('os').mkdir('%b')" % name

    def text(content):
        return b"X" + struct.pack("<I", len(content)) + content

    return [
        *(pickle.dumps({b"data": Harmful(folder), b"labels": [1]}, protocol) for protocol in range(6)),
        b"(S'" + name + b"'\ni" + module + b"\nmkdir\n.",  # INST
        b"\x80\x02(c" + module + b"\nmkdir\n" + text(name) + b"o.",  # OBJ
        b"\x80\x04" + text(module) + text(b"mkdir") + b"\x93" + text(name) + b"\x85R.",  # STACK_GLOBAL
        b"\x80\x02cbuiltins\neval\n" + text(command) + b"\x85R.",
    ]


def test_harmful_pickles_are_rejected_and_never_run(tmp_path):
    folder = tmp_path / "made"
    for content in harmful_pickles(folder):
        pickle.loads(content)
        assert folder.is_dir(), "the pickle must be harmful, or this test shows nothing"
        folder.rmdir()
        (tmp_path / "batch").write_bytes(content)
        rejection(read_cifar_python, tmp_path / "batch")
        assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (pickle.dumps(np.array([1, "a"], dtype=object), 2), "numpy.dtype for something other than plain numbers"),
        (pickle.dumps(np.array(["a"]), 4), "numpy.dtype for something other than plain numbers"),
        (pickle.dumps({1, 2}, 2), "names"),
        (pickle.dumps({(1, 2): 3}, 2), "key that is neither a string nor a number"),
        (pickle.dumps(print, 4), "names builtins.print"),
        (pickle.dumps(Path("a"), 2), "names"),
        (b"\x80\x02X\x01\x00\x00\x00a)R.", "it has a str instead of a _Name"),
        (b"\x80\x02}}b.", "it has a dict instead of a _Unfinished"),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
            "_codecs.encode for something other",
        ),
        (b"\x80\x02cnumpy\ndtype\ncnumpy\nndarray\n\x85R.", "it has a _Name instead of a str"),
        (b"\x80\x02]]a]e.", "more values than its stack holds"),
        (b"\x80\x02(}(K\x01u.", "zip() argument 2 is shorter"),
        (b"\x80\x02R.", "more values than its stack holds"),
        (b"\x80\x02]].", "exactly one value"),
        (b"\x80\x02h\x05.", "5"),
        (b"\x80\x02P1\n.", "opcode PERSID"),
    ],
)
def test_pickles_of_anything_but_plain_data_are_rejected(tmp_path, content, sentence):
    (tmp_path / "batch").write_bytes(content)
    assert sentence in rejection(read_cifar_python, tmp_path / "batch")


def test_svhn_files_with_wrong_content_are_rejected(tmp_path):
    file, x = tmp_path / "train_32x32.mat", COLOUR[0].transpose(1, 2, 3, 0)
    wrong = {
        "must hold X and y": {"X": x},
        "must be uint8 (H, W, 3, N), got float64": {"X": x / 255, "y": np.ones((2, 1), dtype=int)},
        "must be uint8 (H, W, 3, N), got uint8 of shape (2, 32, 32, 3)": {
            "X": COLOUR[0],
            "y": np.ones((2, 1), dtype=int),
        },
        "must be 2 integer labels": {"X": x, "y": np.ones((3, 1), dtype=int)},
        "must be 1..10, got 1..11": {"X": x, "y": np.array([[1], [11]])},
    }
    for sentence, content in wrong.items():
        savemat(file, content)
        assert sentence in rejection(read_svhn, file)


def test_a_picture_of_odd_size_is_named(tmp_path):
    for name, shape in (("a/1", (9, 7)), ("a/2", (8, 8)), ("b/3", (8, 8)), ("b/4", (8, 8))):
        write_picture(tmp_path / f"{name}.png", np.zeros(shape, dtype=np.uint8))
    sentence = rejection(read_image_folder, tmp_path)
    assert f"{tmp_path / 'a' / '1.png'} is 9 x 7" in sentence
    assert "size=(8, 8)" in sentence


def test_pictures_whose_pixels_would_change_are_rejected(tmp_path):
    write_picture(tmp_path / "16bit" / "a" / "x.png", np.full((4, 4), 1000, dtype=np.uint16))
    assert "not 8 bits each" in rejection(read_picture, tmp_path / "16bit" / "a" / "x.png")
    write_picture(tmp_path / "glass" / "a" / "x.png", np.full((4, 4, 4), 100, dtype=np.uint8))
    assert "transparent" in rejection(read_picture, tmp_path / "glass" / "a" / "x.png")


def test_folders_without_classes_or_pictures_are_rejected(tmp_path):
    assert "one folder per class" in rejection(read_image_folder, tmp_path)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    assert str(tmp_path / "train") in rejection(read_image_folder, tmp_path)


# MATLAB files --------------------------------------------------------------------------------------------------------

MAT_TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]


def mat_bytes(arrays, **options):
    file = io.BytesIO()
    savemat(file, arrays, **options)
    return file.getvalue()


def assert_equal_to_scipy(content, names):
    ours, theirs = numeric_arrays(content, names), loadmat(io.BytesIO(content))
    assert ours.keys() == set(names)
    for name in names:
        assert ours[name].dtype == theirs[name].dtype.newbyteorder("=")
        np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_arrays_equal_those_of_scipy(compressed):
    shapes = [(1, 1), (2, 1), (3, 5), (2, 3, 4), (4, 3, 2, 5), (0, 3), (1, 7, 1, 1)]
    arrays = {
        f"a_{code}_{i}": RNG.integers(0, 100, shape).astype(code)
        for code in MAT_TYPES
        for i, shape in enumerate(shapes)
    }
    others = {"text": "words", "cell": np.array([1, "a"], dtype=object), "struct": {"a": 1}, "z": np.array([[1 + 2j]])}
    content = mat_bytes({**others, **arrays}, do_compression=compressed)
    assert_equal_to_scipy(content, list(arrays))
    assert numeric_arrays(content, ["missing"]) == {}
    for name in others:
        with pytest.raises(ValueError, match=f"{name} must be an array of real numbers"):
            numeric_arrays(content, [name])


def big_endian_mat(values, kind):
    """A file of a big-endian machine with one array a; the name is a small element."""

    def element(kind, content):
        return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)

    sizes = struct.pack(f">{values.ndim}i", *values.shape)
    head = element(6, struct.pack(">II", 13, 0)) + element(5, sizes) + struct.pack(">HH", 1, 1) + b"a\0\0\0"
    matrix = element(14, head + element(kind, values.tobytes(order="F")))
    return b"MATLAB".ljust(116) + bytes(8) + b"\x01\x00MI" + matrix


@pytest.mark.parametrize(("code", "kind"), [(">u4", 6), (">i2", 3), (">f8", 9)])
def test_big_endian_matlab_arrays_equal_those_of_scipy(code, kind):
    assert_equal_to_scipy(big_endian_mat(np.arange(12).reshape(4, 3).astype(code), kind), ["a"])


@pytest.mark.parametrize("compressed", [False, True])
def test_any_changed_byte_of_a_matlab_header_gives_an_image_or_a_sentence(tmp_path, compressed):
    """With scipy's reader, one changed type tag of y ended the interpreter."""
    file = tmp_path / "train_32x32.mat"
    write_svhn(file, COLOUR[0], BATCH_LABELS[0])
    content = file.read_bytes()
    starts = [content.index(b"X\0"), content.index(b"y\0")]
    for place in sorted({p for start in starts for p in range(start - 48, start + 24)}):
        for value in (0, 1, 2, 5, 14, 15, 127, 255):
            changed = content[:place] + bytes([value]) + content[place + 1 :]
            if compressed:
                packed = zlib.compress(changed[128:], 1)
                changed = changed[:128] + struct.pack("<II", 15, len(packed)) + packed
            file.write_bytes(changed)
            try:
                read_svhn(file)
            except ValueError as error:
                assert str(file) in str(error)  # noqa: PT017


# Files that take more than they should -------------------------------------------------------------------------------

SMALL_LIMIT = 2**24  # 16 MB, so that the files below are quick to write
UNPACKED = 2**27  # what they unpack to
CHILD = """
import resource, sys
from pathlib import Path
from operant.data import formats
import PIL.Image, gzip, numpy.lib.format, zipfile
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 2**26
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for read, file in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        pictures = read == "read_pictures"
        getattr(formats, read)(formats.pictures_in(Path(file)) if pictures else Path(file))
        print("was read")
    except ValueError as error:
        print(error)
"""


def write_gzip_beyond_its_header(file):
    with gzip.open(file, "wb", compresslevel=1) as opened:
        opened.write(idx_bytes(np.zeros(10, dtype=np.uint8)))
        for _ in range(UNPACKED // 2**20):
            opened.write(bytes(2**20))


def write_gzip_of_zeros(file):
    with gzip.open(file, "wb", compresslevel=1) as opened:
        opened.write(bytes([0, 0, 8, 1]) + struct.pack(">I", UNPACKED) + bytes(UNPACKED))


def write_npz_of_zeros(file, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(file, "w", kind, compresslevel=1) as archive, archive.open("x.npy", "w") as part:
        np.save(part, np.zeros(UNPACKED // 8))


def write_mat_of_zeros(file):
    file.write_bytes(mat_bytes({"X": np.zeros((UNPACKED, 1), dtype=np.uint8)}, do_compression=True))


def write_wide_picture(file):
    Image.new("L", (2**13, 2**13)).save(file / "a.png")


def write_wide_tiff(file):
    Image.new("1", (2**13, 2**13)).save(file / "a.tif", compression="group4")


def write_many_pictures(file):
    for i in range(8):
        Image.new("RGB", (2**10, 2**10), (i, 0, 0)).save(file / f"{i:02d}.png")


def write_strings_that_multiply(file):
    text = b"X" + struct.pack("<I", 2**20) + b"a" * 2**20
    call = b"X\x06\0\0\0latin1\x86q\x02" + b"h\x01h\x02R" * 1000
    file.write_bytes(b"\x80\x02(c_codecs\nencode\nq\x01" + text + call + b"t.")


def write_shape_that_multiplies(file):
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNtb"
    start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    file.write_bytes(start + b"(K\x01J\0\0\0\x7fK\x01\x85\x86" + dtype + b"\x89U\x01atb.")


BOMBS = {
    "gzip beyond its header": (write_gzip_beyond_its_header, "read_idx", "it has 19 or more"),
    "gzip of zeros": (write_gzip_of_zeros, "read_idx", VARIABLE),
    "npz of zeros": (write_npz_of_zeros, "read_npz", VARIABLE),
    "npz in bzip2": (
        lambda file: write_npz_of_zeros(file, zipfile.ZIP_BZIP2), "read_npz", VARIABLE
    ),
    "mat of zeros": (write_mat_of_zeros, "read_svhn", VARIABLE),
    "wide picture": (write_wide_picture, "read_pictures", VARIABLE),
    "wide TIFF": (write_wide_tiff, "read_pictures", VARIABLE),
    "many pictures": (write_many_pictures, "read_pictures", VARIABLE),
    "strings": (write_strings_that_multiply, "read_cifar_python", "many times"),
    "shape": (write_shape_that_multiplies, "read_cifar_python", "do not fit its shape"),
}  # fmt: skip


def test_small_files_take_little_memory(tmp_path):
    """A process that may use 64 MB more than it has refuses files that unpack to 128 MB or more."""
    arguments = []
    for name, (write, read, _) in BOMBS.items():
        file = tmp_path / name / ("" if read == "read_pictures" else "file")
        (tmp_path / name).mkdir()
        write(file)
        arguments += [read, str(file)]
    env = os.environ | {VARIABLE: str(SMALL_LIMIT), "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    for file, said, (_, _, sentence) in zip(arguments[1::2], done.stdout.splitlines(), BOMBS.values(), strict=True):
        assert file in said
        assert sentence in said
        assert "allocate" not in said


def test_bzip2_is_refused_whatever_size_it_announces(tmp_path):
    """zipfile unpacks a whole block of bzip2 at once, whatever size the archive announces."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive, archive.open("x.npy", "w") as part:
        np.save(part, np.zeros(3))
    assert "compressed in a way that numpy does not use" in rejection(read_npz, tmp_path / "a.npz")


def test_the_limit_in_a_refusal_is_enough_to_read_the_file(tmp_path, monkeypatch):
    def read_folder(folder):
        return formats.read_pictures(formats.pictures_in(folder))

    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((100, 1000)))
    Image.new("RGB", (300, 200)).save(tmp_path / "a.png")
    for read, file, needed in ((read_npz, tmp_path / "a.npz", 800_128), (read_folder, tmp_path, 960_000)):
        monkeypatch.setenv(VARIABLE, "1000")
        with pytest.raises(ValueError, match=f"set {VARIABLE}={needed} to read it anyway"):
            read(file)
        monkeypatch.setenv(VARIABLE, str(needed))
        read(file)


@pytest.mark.parametrize(
    ("sizes", "mode", "size"),
    [
        ([(40, 40)] * 50, "RGB", None),
        ([(40, 40)] * 50, "L", None),
        ([(40, 40)] * 50, "RGB", (224, 224)),
        ([(30, 30), (60, 60), (40, 90)] * 2, "P", (40, 40)),
        ([(90, 90)], "RGB", None),
    ],
)
def test_the_limit_in_a_refusal_is_enough_for_all_pictures(tmp_path, monkeypatch, sizes, mode, size):
    """Whichever picture is refused first: one that is too large itself, or the one that all before it make too many."""
    for i, shape in enumerate(sizes):
        Image.new(mode, shape).save(tmp_path / f"{i:02d}.png")
    files = formats.pictures_in(tmp_path)
    refused = []
    for limit in (1, 20_000, 40_000):
        monkeypatch.setenv(VARIABLE, str(limit))
        try:
            formats.read_pictures(files, size=size)
        except ValueError as error:
            refused.append(limit)
            monkeypatch.setenv(VARIABLE, re.search(rf"\(set {VARIABLE}=(\d+) to", str(error))[1])
            assert len(formats.read_pictures(files, size=size)) == len(sizes)
    assert 1 in refused


def test_resizing_is_not_refused(tmp_path, monkeypatch):
    """The limit is for what a file unpacks to; how large the pictures become is the user's choice."""
    for i in range(6):
        Image.new("RGB", (32, 32)).save(tmp_path / f"{i}.png")
    files = formats.pictures_in(tmp_path)
    monkeypatch.setenv(VARIABLE, str(4 * 4 * 32 * 32))
    with pytest.raises(ValueError, match=f"{tmp_path}, up to 5.png, unpacks to .*set {VARIABLE}={6 * 3 * 32 * 32} to"):
        formats.read_pictures(files)
    assert formats.read_pictures(files, size=(224, 224)).shape == (6, 3, 224, 224)
    Image.new("RGB", (33, 33)).save(files[3])
    with pytest.raises(ValueError, match=f"3.png is not a readable picture: .*set {VARIABLE}={4 * 4 * 33 * 33} to"):
        formats.read_pictures(files, size=(2, 2))


@pytest.mark.parametrize("text", ["0", "-1", "1e9", "1 GB", "9" * 5000])
def test_a_limit_that_is_no_number_of_bytes_is_rejected(tmp_path, monkeypatch, text):
    np.savez(tmp_path / "a.npz", x=GREY["test"])
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=f"{VARIABLE} must be a number of bytes"):
        read_npz(tmp_path / "a.npz")


def test_ordinary_data_is_within_the_limits(tmp_path):
    check_unpacked(4 * 60_000 * 3072, size=10**6)  # CIFAR-10 as float32, however well it is compressed
    check_unpacked(8 * 60_000 * 3072, size=170 * 10**6)  # as float64, as small as its own bytes
    check_unpacked(531_131 * 3072, size=1_329_278_602)  # the extra images of SVHN
    check_unpacked(50 * 10**9, size=50 * 10**9)  # what is not compressed
    check_picture_bytes(4 * 11_648 * 8_736, size=60 * 10**6)  # a photo of 100 megapixels
    assert MAX_BYTES == 2**30
    Image.effect_noise((4000, 3000), 50).save(tmp_path / "a.jpg", quality=30)
    assert formats.read_pictures(formats.pictures_in(tmp_path)).shape == (1, 1, 3000, 4000)


def test_completing_an_array_does_not_search_the_memory_of_a_pickle():
    """It did, once per array, which made reading quadratic."""

    class Memory(dict):
        def items(self):
            raise AssertionError("the whole memory was read")

    arrays = [np.arange(i, dtype=np.uint8) for i in range(1, 20)]
    content = pickle.dumps([arrays, arrays], 2)
    machine = formats._Machine(encodable=len(content), memory=Memory())
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name != "STOP":
            machine.step(opcode.name, argument)
    ((first, second),) = machine.stack
    assert all(np.array_equal(a, b) for a, b in zip(first, arrays, strict=True))
    assert second is first


@pytest.fixture
def no_blocking():
    """A read that blocks fails after 20 seconds."""

    def fail(*_):
        raise AssertionError("it blocks")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_blocking")
def test_pipes_are_rejected(tmp_path):
    for name, read in (
        ("a.npz", read_npz), ("idx", read_idx), ("batch", read_cifar_python), ("batch.bin", read_cifar_binary),
        ("train.mat", read_svhn), ("pictures/x/a.png", read_picture),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
        assert "must be a regular file" in rejection(read, tmp_path / name)


def test_only_the_formats_of_pictures_are_decoded(tmp_path):
    """Pillow knows formats that start other programs, such as EPS, whatever the name of the file."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(ValueError, match="a.png is not a readable picture: cannot identify"):
        formats.read_pictures(formats.pictures_in(tmp_path))


# What load says ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("mnist", ["mnist.npz", "MNIST/raw", "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte (or .gz)"]),
        ("cifar10", ["cifar10.npz", "cifar-10-batches-py", "cifar-10-batches-bin", "data_batch_5.bin", "test_batch"]),
        ("svhn", ["svhn.npz", "train_32x32.mat", "test_32x32.mat"]),
        ("usps", ["usps.npz"]),
        ("fashion-mnist", ["fashion-mnist.npz", "FashionMNIST/raw", "{debian}"]),
    ],
)
def test_load_lists_the_places_it_searched(tmp_path, monkeypatch, name, files):
    monkeypatch.setattr(sources, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    with pytest.raises(FileNotFoundError) as caught:
        load(name, tmp_path / "data")
    for file in files:
        assert file.format(debian=tmp_path / "debian") in str(caught.value)
    assert str(tmp_path / "data" / name) in str(caught.value)


def test_load_rejects_half_a_set(tmp_path):
    write_idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="only a part of mnist: t10k-labels-idx1-ubyte missing"):
        load("mnist", tmp_path)
    write_cifar_set(tmp_path / "cifar-10-batches-bin", ".bin", cifar_binary_bytes)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match="only a part of cifar10: data_batch_3.bin missing"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(("asked", "there"), [("mnist", "fashion-mnist"), ("fashion-mnist", "mnist")])
def test_load_notices_the_other_set_behind_the_same_file_names(tmp_path, monkeypatch, asked, there):
    monkeypatch.setitem(GREY, "train", RNG.integers(0, 256, (16, 28, 28), dtype=np.uint8))
    monkeypatch.setitem(LABELS, "train", np.array(sources.FIRST_LABELS[there]))
    write_idx_set(tmp_path)
    assert_grey_set(load(there, tmp_path))
    with pytest.raises(ValueError, match=f"holds {there}, not {asked}"):
        load(asked, tmp_path)


def test_a_set_in_its_own_folder_comes_before_the_shared_root(tmp_path):
    write_idx_set(tmp_path / "fashion-mnist", compress=True)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"another set")
    assert_grey_set(load("fashion-mnist", tmp_path))
