"""docs/errors.md lists the codes that the source has, no others, and their exit codes."""

from collections import defaultdict

from errors_page import rows, sites, uncoded_warnings

ROWS = {row.code: row for row in rows()}
SITES = list(sites())


def test_every_code_in_the_source_is_listed():
    assert [site for site in SITES if site.code not in ROWS] == []


def test_every_listed_code_is_in_the_source():
    assert set(ROWS) - {site.code for site in SITES} == set()


def test_codes_are_listed_once_in_alphabetical_order():
    codes = [row.code for row in rows()]
    assert codes == sorted(set(codes))


def test_the_listed_exit_codes_are_those_of_the_classes():
    exit_codes = defaultdict(set)
    for site in SITES:
        exit_codes[site.code].add("warning" if site.exit_code is None else str(site.exit_code))
    listed = {code: set(row.exit_codes.split(" or ")) for code, row in ROWS.items()}
    assert listed == exit_codes


def test_every_row_has_a_cause():
    assert [row for row in ROWS.values() if not row.cause.endswith(".")] == []


def test_every_logged_warning_has_a_code():
    assert list(uncoded_warnings()) == []
