"""Trains a tokenizer with the `tokenizers` library, and saves it as a Hugging Face folder.

Kinds, with the special tokens of a model family: WordPiece (BERT), byte-level BPE (RoBERTa). Accents are kept: without
them Portuguese and most languages have confused words ("avó", "avô").
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from paratune import records
from paratune.base.atomic import replace_folder
from paratune.errors import CheckpointError, ConfigError, option_error, require_at_least

Kind = Literal["wordpiece", "bpe"]
RECORD_FILE = "tokenizer_training.json"
"""File next to the tokenizer, with recipe and texts."""
SPECIAL_TOKENS = {
    "wordpiece": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bpe": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}
"""By kind: those of BERT and of RoBERTa."""
MIN_FREQUENCY = 2
"""Minimum frequency of a pair of pieces to be merged."""
MAX_LETTERS = 1000
"""Maximum number of characters in the alphabet of WordPiece; rarer ones become unknown."""
_BYTES = 256
"""Initial symbols of byte-level BPE."""


@dataclass(frozen=True)
class TokenizerRecipe:
    """How a tokenizer is trained."""

    kind: Kind = "wordpiece"
    vocab_size: int = 20_000
    """Maximum number of entries, including special tokens."""
    lowercase: bool = False
    max_length: int = 512
    """Maximum number of tokens of a text."""

    def check(self) -> None:
        """Check the options.

        Raises:
            ConfigError: An option is out of range.
        """
        own, minimum = (_BYTES, "256 bytes") if self.kind == "bpe" else (1, "one of its own")
        least = len(SPECIAL_TOKENS[self.kind]) + own
        if self.vocab_size < least:
            facts: dict[str, Any] = {"code": "tokenizer.unsupported", "least": least, "kind": self.kind}
            reason = f"at least {least} for {self.kind} (special tokens and {minimum})"
            raise option_error("--vocab-size", self.vocab_size, reason, **facts)
        require_at_least("--max-length", self.max_length)


@dataclass
class TextCounts:
    """Counts of the training texts."""

    num_texts: int = 0
    num_characters: int = 0

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            self.num_texts += 1
            self.num_characters += len(text)
            yield text


def train_tokenizer(
    texts: Callable[[], Iterable[str]], recipe: TokenizerRecipe, *, shows_progress: bool = False
) -> tuple[Any, TextCounts]:
    """Return a tokenizer of the `tokenizers` library, and counts of the training texts.

    The same texts give the same tokenizer. It puts the special tokens around a text and a pair, as the models of its
    family were trained.

    Args:
        texts: Returns the texts, in the same order at each call; WordPiece reads them twice.

    Raises:
        ConfigError: The recipe is invalid, or the texts have no words.
    """
    from tokenizers import ByteLevelBPETokenizer, Tokenizer, processors

    recipe.check()
    if not any(text.strip() for text in texts()):
        raise ConfigError("the texts have no words; use files with running text", code="data.empty")
    counted, special_tokens = TextCounts(), SPECIAL_TOKENS[recipe.kind]
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    options = {"vocab_size": recipe.vocab_size, "min_frequency": MIN_FREQUENCY, "show_progress": shows_progress}
    if recipe.kind == "wordpiece":
        tokenizer = _train_wordpiece(texts, counted.count(texts()), recipe, options)
        pair = f"{cls} $A {sep} $B:1 {sep}:1"
    else:
        trained = ByteLevelBPETokenizer(lowercase=recipe.lowercase, unicode_normalizer="nfc")
        trained.train_from_iterator(counted.count(texts()), special_tokens=list(special_tokens.values()), **options)
        tokenizer, pair = Tokenizer.from_str(trained.to_str()), f"{cls} $A {sep} {sep} $B {sep}"
    numbers = [(token, tokenizer.token_to_id(token)) for token in (cls, sep)]
    single = f"{cls} $A {sep}"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=numbers)
    return tokenizer, counted


def _train_wordpiece(
    texts: Callable[[], Iterable[str]], watched: Iterable[str], recipe: TokenizerRecipe, options: dict[str, Any]
) -> Any:
    """Train twice: to find the alphabet, and with it.

    The library numbers the pieces "##a" in an order that changes from run to run, and breaks ties by these numbers.
    Passing them as special tokens fixes the order.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    special_tokens = SPECIAL_TOKENS["wordpiece"]
    specials, unknown = list(special_tokens.values()), special_tokens["unk"]

    def untrained() -> Any:
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=recipe.lowercase, strip_accents=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    letters: Counter[str] = Counter()
    tokenizer = untrained()
    normalise = tokenizer.normalizer.normalize_str

    def counting() -> Iterator[str]:
        for text in texts():
            letters.update(normalise(text))
            yield text

    tokenizer.train_from_iterator(counting(), trainer=trainers.WordPieceTrainer(vocab_size=1, show_progress=False))
    vocabulary = tokenizer.get_vocab()
    by_count = sorted(vocabulary.keys() & letters.keys(), key=lambda letter: (-letters[letter], letter))
    alphabet = by_count[:MAX_LETTERS]
    inner = sorted(piece for letter in alphabet if (piece := f"##{letter}") in vocabulary)
    least = len(specials) + len(inner) + len(alphabet)
    if least > recipe.vocab_size:
        reason = f"these texts have {len(alphabet)} letters, which need {least} entries; use a larger vocabulary"
        raise option_error("--vocab-size", recipe.vocab_size, reason, code="tokenizer.unsupported", least=least)
    options |= {"special_tokens": [*specials, *inner], "initial_alphabet": alphabet, "limit_alphabet": len(alphabet)}
    tokenizer = untrained()
    tokenizer.train_from_iterator(watched, trainer=trainers.WordPieceTrainer(**options))
    made = untrained()
    made.model = models.WordPiece(tokenizer.get_vocab(), unk_token=unknown)
    made.add_special_tokens(specials)
    return made


def save_tokenizer(
    tokenizer: Any, recipe: TokenizerRecipe, folder: Path, record: dict[str, Any], *, overwrite: bool = False
) -> None:
    """Write a folder for AutoTokenizer, with a record of the training; the folder is complete or unchanged.

    Raises:
        CheckpointError: The folder is not writable.
    """
    from transformers import PreTrainedTokenizerFast

    names = {f"{name}_token": token for name, token in SPECIAL_TOKENS[recipe.kind].items()}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if recipe.kind == "bpe":
        names |= {"bos_token": names["cls_token"], "eos_token": names["sep_token"]}
        inputs.remove("token_type_ids")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=recipe.max_length, model_input_names=inputs, **names
    )
    try:
        with replace_folder(folder, is_new=not overwrite) as temporary:
            wrapped.save_pretrained(str(temporary))
            records.write_json(temporary / RECORD_FILE, {"recipe": asdict(recipe), **record})
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror or error}; choose another --out"
        raise CheckpointError(message, code="output.not_writable", folder=folder) from error
