"""The page of a description of the field: one HTML file that contains everything and loads nothing."""

from pathlib import Path

from markupsafe import Markup

from operant.activity import activity
from operant.campaign.observers.field_description import DescriptionOfField, section_values
from operant.profile import FieldDescription
from operant.report.page import page_environment, page_file
from operant.results import save, write_atomically

NAME = "field"


@activity("writing the description of the field")
def write_field(description: FieldDescription, folder: str | Path) -> Path:
    """Write ``field.html`` and ``field.json``, with some field inputs beside it; returns the page.

    Existing files are replaced. `operant.results.load` reads ``field.json`` into a `FieldDescription`, for
    ``describe_field(..., last=...)``.
    """
    page = Path(folder) / f"{NAME}.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"a description is written to a folder, but {folder} is a file; choose another") from None
    write_atomically(page, render_field(description).encode())
    save(description, page.with_suffix(".json"))
    return page


def render_field(description: FieldDescription) -> str:
    """The whole page as text."""
    environment = page_environment()
    section = environment.from_string(DescriptionOfField.template).render(section_values(description))
    return environment.from_string(page_file("field.html")).render(
        d=description, section=Markup(section), style=Markup(page_file("page.css"))
    )
