"""docs/site/causes.toml has a cause for each code that the source has, and for no other."""

from error_codes import TEXTS, sites, uncoded_warnings

CAUSES = TEXTS["errors"]


def test_every_code_in_the_source_has_a_cause():
    assert [site for site in sites() if site.code not in CAUSES] == []


def test_every_cause_is_of_a_code_in_the_source():
    assert set(CAUSES) - {site.code for site in sites()} == set()


def test_causes_are_in_alphabetical_order_and_complete_sentences():
    assert list(CAUSES) == sorted(CAUSES)
    assert [code for code, cause in CAUSES.items() if not cause.endswith(".")] == []


def test_every_logged_warning_has_a_code():
    assert list(uncoded_warnings()) == []
