"""The controls of a page that select configurations or runs; hidden without JavaScript."""

from paratune.reports.document import Selection
from paratune.reports.text import Html, join, tag


def selection_html(selection: Selection) -> Html:
    """Return the controls, and the note that a printed page has when not everything is selected."""
    heading = tag("summary", tag("strong", f"Select {selection.kind}: "), tag("span", class_="state"))
    words = tag("input", type="search", id="selection-words", autocomplete="off", spellcheck="false")
    buttons = (
        tag("button", f"Select {which}", type="button", data_select=which, class_="small") for which in ("all", "none")
    )
    checks = (
        tag("label", tag("input", type="checkbox", checked=True), f" {entry.label}") for entry in selection.entries
    )
    controls = tag(
        "div", tag("label", "Names with the words ", words), Html(" "), *buttons, class_="controls",
    )  # fmt: skip
    names = tag("fieldset", tag("legend", selection.kind.capitalize()), *checks)
    box = tag(
        "details", heading, controls, names, id="selection", class_="selection", data_kind=selection.kind, hidden=True
    )
    note = tag("p", id="selection-note", class_="notice", role="status", data_note=selection.note, hidden=True)
    return join([box, note])
