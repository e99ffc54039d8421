"""Checks files, languages and the contact address before the first stage starts."""

from collections.abc import Collection, Iterator

from paratune.corpus.clean.language import check_languages
from paratune.corpus.clean.personal import check_region
from paratune.corpus.clean.run import is_step_enabled
from paratune.corpus.index.inputs import find_files
from paratune.corpus.sentences.models import clean_text_files
from paratune.corpus.settings import Corpus
from paratune.errors import ConfigError, DataError

EXAMPLE_CONTACTS = ("name@your.institution.pt", "name@institution.pt")
"""Placeholders in the example configurations; no archive can write to them."""


def check_inputs(corpus: Corpus, stages: Collection[str]) -> None:
    """Check that input files of some stages exist, that languages and region are known, and that the contact is real.

    Raises:
        DataError: Names or patterns match no file (the message lists all), or a file has an unsupported format.
        ConfigError: A language or region is unknown, or the contact is a placeholder.
        MissingDependency: A package of the cleaning is not installed.
    """
    missing = []
    for key, pattern in dict.fromkeys(_patterns(corpus, stages)):
        try:
            find_files([pattern], key)
        except DataError as error:
            missing.append(str(error))
    if len(missing) == 1:
        raise DataError(missing[0], code="data.not_found")
    if missing:
        raise DataError("\n  ".join([f"{len(missing)} problems", *missing]), code="data.not_found")
    if "sentences" in stages:
        clean_text_files(corpus.sentences)
    if "clean" in stages and is_step_enabled(corpus, "language"):
        check_languages(corpus.clean.language)
    if "clean" in stages and is_step_enabled(corpus, "personal"):
        check_region(corpus.clean.personal)
    uses_network = {"index": corpus.index.servers, "fetch": corpus.fetch.ranges or corpus.fetch.replay}
    if corpus.network.contact in EXAMPLE_CONTACTS and any(uses_network.get(stage) for stage in stages):
        raise ConfigError(
            f"network.contact is {corpus.network.contact}, a placeholder; set an address that the archive can write to",
            code="config.placeholder",
            key="network.contact",
            value=corpus.network.contact,
        )


def _patterns(corpus: Corpus, stages: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the configuration key and the path or pattern of each input."""
    clean = corpus.clean
    inputs: list[tuple[str, str, list[str]]] = [
        ("index", "index.files", corpus.index.files),
        ("index", "index.warcs", corpus.index.warcs),
        ("fetch", "index.warcs", corpus.index.warcs),
        ("fetch", "fetch.warcs", corpus.fetch.warcs),
    ]
    for source in clean.variety.sources if is_step_enabled(corpus, "variety") else []:
        inputs.append(("clean", f"clean.variety.sources: {source.name}", [*source.brazilian, *source.european]))
    for evaluation_set in clean.decontaminate.sets if is_step_enabled(corpus, "decontaminate") else []:
        inputs.append(("clean", f"clean.decontaminate.sets: {evaluation_set.name}", evaluation_set.files))
    inputs.append(("sentences", "sentences.clean.files", corpus.sentences.clean.files))
    for stage, key, patterns in inputs:
        if stage in stages:
            yield from ((key, pattern) for pattern in patterns)
