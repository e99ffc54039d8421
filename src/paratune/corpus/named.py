"""What the settings name, looked for before the first stage begins: a wrong name ends no command after hours."""

from collections.abc import Collection, Iterator

from paratune.corpus.clean.language import check_languages
from paratune.corpus.clean.run import is_on
from paratune.corpus.index.inputs import find_files
from paratune.corpus.sentences.clean import files_of
from paratune.corpus.settings import Corpus
from paratune.errors import ConfigError, DataError

EXAMPLE_CONTACTS = ("name@your.institution.pt", "name@institution.pt")
"""Those of our examples, whom no archive can write to."""


def check_named(corpus: Corpus, stages: Collection[str]) -> None:
    """Look for all files that some stages read, and whether the languages are known and somebody can be written to.

    Args:
        corpus: The settings.
        stages: Names of the stages that are to run.

    Raises:
        DataError: Names or patterns mean no file, all are in the text; or a file is of a kind that is not read.
        ConfigError: A language is not known, or the contact is that of an example.
        MissingDependency: What tells languages is not installed.
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
    if "sentences" in stages and corpus.sentences.scorer != "mlm":
        files_of(corpus.sentences)
    if "clean" in stages and is_on(corpus, "language"):
        check_languages(corpus.clean.language)
    asks = {"index": corpus.index.servers, "fetch": corpus.fetch.ranges or corpus.fetch.replay}
    if corpus.network.contact in EXAMPLE_CONTACTS and any(asks.get(stage) for stage in stages):
        raise ConfigError(
            f"network.contact is {corpus.network.contact}, that of the example; name whom the archive can write to",
            code="config.placeholder",
            key="network.contact",
            value=corpus.network.contact,
        )


def _patterns(corpus: Corpus, stages: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and patterns of files, each with what names it."""
    clean = corpus.clean
    named: list[tuple[str, str, list[str]]] = [
        ("index", "index.files", corpus.index.files),
        ("index", "index.warcs", corpus.index.warcs),
        ("fetch", "index.warcs", corpus.index.warcs),
        ("fetch", "fetch.warcs", corpus.fetch.warcs),
    ]
    for source in clean.variety.sources if is_on(corpus, "variety") else []:
        named.append(("clean", f"clean.variety.sources: {source.name}", [*source.brazilian, *source.european]))
    for each in clean.decontaminate.sets if is_on(corpus, "decontaminate") else []:
        named.append(("clean", f"clean.decontaminate.sets: {each.name}", each.files))
    if corpus.sentences.scorer != "mlm":
        named.append(("sentences", "sentences.clean.files", corpus.sentences.clean.files))
    for stage, key, patterns in named:
        if stage in stages:
            yield from ((key, pattern) for pattern in patterns)
