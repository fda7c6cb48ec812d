"""The gallery: its pictures, its text, and that no name given by a user can inject markup."""

import base64
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from operant import Samples, Suite, spawn
from operant.report import write_gallery
from operant.report.gallery import amplification
from operant.suite.drawing import BRIGHTER, CLIPPED, DARKER, FACTORS, UNCHANGED, colours

VOID = {"meta", "img", "link", "br"}
HOSTILE = """</style><script src='https://example.org/x.js'>alert("1")</script><img src=x onerror=alert(1)>&lt;"""


class Page(HTMLParser):
    """A parsed page: its tags with their attributes, its text, and a check that tags are closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(self.source)
        self.close()
        assert self.open == [], f"tags left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    def pictures(self) -> list[np.ndarray]:
        """Every image of the page, decoded, in order."""
        sources = [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]
        assert all(source.startswith("data:image/png;base64,") for source in sources)
        return [np.asarray(Image.open(io.BytesIO(base64.b64decode(s.partition(",")[2])))) for s in sources]


def suite_of(
    shape: tuple[int, ...],
    *,
    n: int = 5,
    bounds: tuple[float, float] = (0.0, 1.0),
    prediction: list[int] | None = None,
    method: str | list[str] = "noise",
    columns: dict[str, object] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Suite:
    low, high = bounds
    x0, noise = (torch.rand(n, *shape, generator=spawn(0, word), dtype=torch.float64) for word in ("seeds", "noise"))
    x = (x0 + 0.1 * (noise - 0.5)).clamp(0, 1)
    scale: Callable[[torch.Tensor], torch.Tensor] = lambda u: (low + (high - low) * u).to(dtype)  # noqa: E731
    labels = torch.arange(n) % 3
    return Suite.of(
        scale(x),
        seeds=Samples(scale(x0), labels),
        origin=torch.arange(n),
        prediction=torch.tensor(prediction) if prediction else (labels + 1) % 3,
        method=method,
        columns=columns,
    )


# Pictures


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 6, 4)])
def test_pictures_show_seed_and_case_in_the_bounds(tmp_path, shape, bounds, dtype):
    suite = suite_of(shape, bounds=bounds, dtype=dtype)
    pictures = Page(write_gallery(suite, tmp_path / "page.html", bounds=bounds)).pictures()
    assert len(pictures) == 3 * len(suite)
    for shown, x in ((pictures[0::3], suite.x0), (pictures[1::3], suite.x)):
        expected = (255 * (x.double() - bounds[0]) / (bounds[1] - bounds[0])).round().movedim(1, -1).squeeze(-1)
        assert np.array_equal(np.stack(shown), expected.numpy().astype(np.uint8))
    assert all(picture.shape == (*shape[1:], 3) for picture in pictures[2::3])


def test_differences_are_signed_and_multiplied_by_the_shown_factor(tmp_path):
    x0 = torch.full((2, 1, 10, 10), 0.5)
    x = x0.clone()
    x[0, 0, :, 0], x[0, 0, :, 1] = 0.6, 0.45
    suite = Suite.of(
        x,
        seeds=Samples(x0, torch.tensor([0, 1]), torch.arange(2)),
        origin=torch.arange(2),
        prediction=torch.tensor([1, 0]),
        method="two columns",
    )
    page = Page(write_gallery(suite, tmp_path / "page.html"))
    factor = int(re.search(r"differences \S (\d+)", page.text)[1])
    assert factor == 10
    assert [a["alt"] for tag, a in page.tags if tag == "img"][2] == "case minus seed, multiplied by 10"
    changed, same = page.pictures()[2::3]
    assert np.array_equal(same, np.broadcast_to(UNCHANGED, (10, 10, 3)))
    assert np.array_equal(changed[:, 2:], np.broadcast_to(UNCHANGED, (10, 8, 3)))
    assert np.allclose(changed[:, 0], UNCHANGED + factor * 0.1 * (BRIGHTER - UNCHANGED), atol=1)
    assert np.allclose(changed[:, 1], UNCHANGED + factor * 0.05 * (DARKER - UNCHANGED), atol=1)


def test_differences_of_colour_pictures_are_centred_at_middle_grey():
    change = np.zeros((2, 4, 4, 3))
    change[0, ..., 0], change[0, ..., 2] = 0.5, -2.0
    assert np.abs(colours(change)[1].astype(int) - 128).max() <= 1
    assert colours(change)[0, 0, 0].tolist() == [191, 128, 0]


@given(a=st.floats(0, 2), b=st.floats(0, 2), sign=st.sampled_from([-1, 1]))
def test_stronger_changes_have_stronger_colours(a, b, sign):
    change = sign * np.array(sorted([0, a, b])).reshape(3, 1, 1, 1)
    strength = np.abs(colours(change) - UNCHANGED).sum(-1).flatten()
    assert strength[0] == 0
    assert strength[1] <= strength[2]


@given(size=st.floats(0, 1), seed=st.integers(0, 1000))
def test_the_factor_is_the_largest_that_shows_nearly_everything(size, seed):
    x0 = torch.zeros(3, 1, 8, 8, dtype=torch.float64)
    x = size * torch.rand(x0.shape, generator=spawn(seed, "factor"), dtype=torch.float64)
    suite = Suite.of(
        x,
        seeds=Samples(x0, torch.zeros(3, dtype=torch.int64), torch.arange(3)),
        origin=torch.arange(3),
        prediction=torch.ones(3),
        method="noise",
    )
    factor = amplification(suite, (0.0, 1.0))
    assert float((factor * x > 1.02).double().mean()) <= CLIPPED + 1e-9
    larger = [f for f in FACTORS if f > factor]
    assert not larger or float((larger[0] * x > 1).double().mean()) >= CLIPPED - 3 / x.numel()


def test_large_pictures_are_not_drawn_pixel_by_pixel(tmp_path):
    for size, drawn in ((16, True), (80, False)):
        page = Page(write_gallery(suite_of((1, size, size), n=2), tmp_path / "page.html"))
        assert (dict(page.tags)["body"].get("class") == "small") == drawn


# Text


def test_failures_come_first_and_the_limit_holds_for_each_method(tmp_path):
    methods = ["a", "b"] * 5
    labels = torch.arange(10) % 3
    prediction = torch.where(torch.arange(10) < 6, labels, (labels + 1) % 3).tolist()
    suite = suite_of((1, 4, 4), n=10, method=methods, prediction=prediction)
    page = Page(write_gallery(suite, tmp_path / "page.html", limit=3))
    assert page.count("article") == 6
    assert page.text.count("withstood") == 2
    assert [a["class"] for tag, a in page.tags if tag == "article"] == ["card failing", "card failing", "card"] * 2
    assert "a 2 of 5 40 %" in page.text
    assert "3 of 5 cases, failures first" in page.text
    seeds = np.stack(page.pictures()[0:9:3])
    assert np.array_equal(seeds, (255 * suite.x0[[6, 8, 0]]).round()[:, 0].numpy().astype(np.uint8))


def test_every_case_shows_labels_distances_and_columns(tmp_path):
    columns = {
        "margin": torch.tensor([1.25, -0.5, torch.nan]),
        "condition": ["rotation", "", "blur"],
    }
    suite = suite_of((1, 4, 4), n=3, prediction=[1, 1, 2], columns=columns)
    page = Page(write_gallery(suite, tmp_path / "page.html", classes=["cat", "dog", "hen"], about={"noise": "Noise"}))
    assert "true cat , predicted dog failure" in page.text
    assert "true hen , predicted hen withstood" in page.text
    assert "margin 1.25 condition rotation" in page.text
    assert page.text.count("margin") == 2
    assert page.text.count("condition") == 2
    assert f"L2 {float(suite.distances('l2')[0]):.3g}" in page.text
    assert "Noise. All 3 cases, failures first" in page.text
    assert f"{float(suite.failures().distances('linf').mean()):#.3g}" in page.text


def test_every_picture_has_a_text_alternative(tmp_path):
    page = Page(write_gallery(suite_of((3, 4, 4), n=3), tmp_path / "page.html", classes=["cat", "dog", "hen"]))
    alts = [attributes.get("alt") for tag, attributes in page.tags if tag == "img"]
    assert alts[:2] == ["seed of class cat", "case that the model takes for dog"]
    assert all(alts)


def test_text_with_markup_stays_text(tmp_path):
    columns = {HOSTILE: torch.ones(3), "note": [HOSTILE] * 3}
    suite = suite_of((1, 4, 4), n=3, method=HOSTILE, columns=columns)
    path = write_gallery(
        suite, tmp_path / "page.html", title=HOSTILE, intro=HOSTILE, about={HOSTILE: HOSTILE}, classes=[HOSTILE] * 3
    )
    page = Page(path)
    assert page.count("script") == 0
    assert page.count("img") == 9
    assert page.count("style") == 1
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(" ".join(HOSTILE.split())) >= 3 * 2 + 3 * 2 + 4


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 4), (6,)])
def test_a_page_loads_nothing(tmp_path, shape):
    page = Page(write_gallery(suite_of(shape), tmp_path / "page.html"))
    assert "http:" not in page.source
    assert "https:" not in page.source
    assert "@import" not in page.source
    assert "url(" not in page.source
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    targets = [attributes["href"] or "" for tag, attributes in page.tags if tag == "a"]
    ids = [attributes.get("id") for _, attributes in page.tags]
    assert targets
    assert all(target.startswith("#") and target[1:] in ids for target in targets)


def test_rows_of_values_show_the_largest_changes(tmp_path):
    x0 = torch.zeros(2, 20)
    x = x0.clone()
    x[0, 7], x[0, 3] = -2.5, 1.25
    suite = Suite.of(
        x,
        seeds=Samples(x0, torch.tensor([0, 1]), torch.arange(2)),
        origin=torch.arange(2),
        prediction=torch.tensor([1, 1]),
        method="table",
    )
    page = Page(write_gallery(suite, tmp_path / "page.html", bounds=(-torch.inf, torch.inf)))
    assert page.count("img") == 0
    assert "value 7 0 -2.5 value 3 0 1.25 L∞ 2.5" in page.text
    assert "seed case none" in page.text


def test_a_suite_without_cases_or_failures_has_a_page(tmp_path):
    suite = suite_of((1, 4, 4), n=3, prediction=[0, 1, 2])
    assert "noise 0 of 3 0 % - -" in Page(write_gallery(suite, tmp_path / "page.html")).text
    assert "This suite has no cases" in Page(write_gallery(suite[:0], tmp_path / "page.html")).text


def test_a_page_is_replaced_and_its_folder_created(tmp_path):
    path = tmp_path / "some" / "where" / "page.html"
    first = write_gallery(suite_of((1, 4, 4), n=3), path, title="First").read_bytes()
    second = write_gallery(suite_of((1, 4, 4), n=3), str(path), title="Second").read_bytes()
    assert first == second.replace(b"Second", b"First")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


# Errors


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (4, 4, 3), (1, 2, 3, 4)])
def test_other_shapes_are_rejected(tmp_path, shape):
    with pytest.raises(ValueError, match="a gallery shows images .* got cases of shape"):
        write_gallery(suite_of(shape), tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bounds", [(0.0, torch.inf), (1.0, 0.0), (torch.nan, 1.0)])
def test_infinite_or_reversed_bounds_are_rejected(tmp_path, bounds):
    with pytest.raises(ValueError, match="bounds must be two finite numbers"):
        write_gallery(suite_of((1, 4, 4)), tmp_path / "page.html", bounds=bounds)


def test_pixels_outside_bounds_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="pixels must lie within bounds .*; give the model's bounds"):
        write_gallery(suite_of((1, 4, 4), bounds=(0.0, 255.0)), tmp_path / "page.html")
    suite = suite_of((1, 4, 4))
    suite.x[1, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="pixels must lie within bounds"):
        write_gallery(suite, tmp_path / "page.html")


def test_missing_names_and_a_limit_of_zero_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="name every label up to 2, got 2 names"):
        write_gallery(suite_of((1, 4, 4)), tmp_path / "page.html", classes=["a", "b"])
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        write_gallery(suite_of((1, 4, 4)), tmp_path / "page.html", limit=0)
