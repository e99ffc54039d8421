"""Trains a tokenizer with the `tokenizers` library, and saves it as a Hugging Face folder.

Kinds, with the special tokens of a model family: WordPiece (BERT), byte-level BPE (RoBERTa).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from paratune import records
from paratune.base.atomic import replace_folder
from paratune.errors import CheckpointError, ConfigError, option_error

Kind = Literal["wordpiece", "bpe"]
RECORD_FILE = "tokenizer_training.json"
"""File next to the tokenizer, with recipe and texts."""
BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_BYTES = 256
"""Initial symbols of byte-level BPE."""


@dataclass(frozen=True)
class TokenizerRecipe:
    """How a tokenizer is trained."""

    kind: Kind = "wordpiece"
    vocab_size: int = 20_000
    """Maximum number of entries, including special tokens."""
    lowercase: bool = False
    strip_accents: bool = False
    """Replace "é" by "e"; in Portuguese and most languages this confuses words ("avó", "avô")."""
    min_frequency: int = 2
    """Minimum frequency of a pair of pieces to be merged (wordpiece and bpe)."""
    limit_alphabet: int = 1000
    """Maximum number of characters in the initial alphabet; rarer ones become unknown (wordpiece)."""
    max_length: int = 512
    """Maximum number of tokens of a text."""

    @property
    def special_tokens(self) -> dict[str, str]:
        return BERT_TOKENS if self.kind == "wordpiece" else ROBERTA_TOKENS

    def check(self) -> None:
        """Check the options.

        Raises:
            ConfigError: An option is out of range.
        """
        least = len(self.special_tokens) + (_BYTES if self.kind == "bpe" else 1)
        if self.vocab_size < least:
            minimum = "special tokens and 256 bytes" if self.kind == "bpe" else "special tokens and one of its own"
            reason = f"at least {least} for {self.kind} ({minimum})"
            raise _vocabulary_error(self.vocab_size, reason, least=least, kind=self.kind)
        for name in ("min_frequency", "limit_alphabet", "max_length"):
            if getattr(self, name) < 1:
                message = f"--{name.replace('_', '-')} {getattr(self, name)}: at least 1"
                raise ConfigError(message, code="cli.out_of_range")


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


def _vocabulary_error(size: int, reason: str, **facts: Any) -> ConfigError:
    return option_error("--vocab-size", size, reason, code="tokenizer.vocabulary_size", **facts)


def train_tokenizer(
    texts: Callable[[], Iterable[str]], recipe: TokenizerRecipe, *, shows_progress: bool = False
) -> tuple[Any, TextCounts]:
    """Return a tokenizer of the `tokenizers` library, and counts of the training texts.

    The same texts give the same tokenizer.

    Args:
        texts: Returns the texts, in the same order at each call; WordPiece reads them twice.

    Raises:
        ConfigError: The recipe is invalid, or the texts have no words.
    """
    recipe.check()
    if not any(text.strip() for text in texts()):
        raise ConfigError("the texts have no words; use files with running text", code="data.empty")
    counted = TextCounts()
    watched = counted.count(texts())
    if recipe.kind == "wordpiece":
        tokenizer = _train_wordpiece(texts, watched, recipe, shows_progress)
    else:
        tokenizer = _train_bpe(watched, recipe, shows_progress)
    _frame(tokenizer, recipe)
    return tokenizer, counted


def save_tokenizer(
    tokenizer: Any, recipe: TokenizerRecipe, folder: Path, record: dict[str, Any], *, overwrite: bool = False
) -> None:
    """Write a folder for AutoTokenizer, with a record of the training; the folder is complete or unchanged.

    Raises:
        CheckpointError: The folder is not writable.
    """
    from transformers import PreTrainedTokenizerFast

    names = {f"{name}_token": token for name, token in recipe.special_tokens.items()}
    if recipe.kind != "wordpiece":
        names |= {"bos_token": names["cls_token"], "eos_token": names["sep_token"]}
    has_types = recipe.kind == "wordpiece"
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=recipe.max_length,
        model_input_names=["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"],
        **names,
    )
    try:
        with replace_folder(folder, is_new=not overwrite) as temporary:
            wrapped.save_pretrained(str(temporary))
            records.write_json(temporary / RECORD_FILE, {"recipe": asdict(recipe), **record})
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror or error}; choose another --output"
        raise CheckpointError(message, code="output.not_writable", folder=folder) from error


def _train_wordpiece(
    texts: Callable[[], Iterable[str]], watched: Iterable[str], recipe: TokenizerRecipe, shows_progress: bool
) -> Any:
    """Train twice: to find the alphabet, and with it.

    The library numbers the pieces "##a" in an order that changes from run to run, and breaks ties by these numbers.
    Passing them as special tokens fixes the order.
    """
    from tokenizers import models, trainers

    specials = list(recipe.special_tokens.values())
    letters: Counter[str] = Counter()
    tokenizer = _wordpiece(recipe)
    normalise = tokenizer.normalizer.normalize_str

    def counting() -> Iterator[str]:
        for text in texts():
            letters.update(normalise(text))
            yield text

    first = trainers.WordPieceTrainer(vocab_size=1, show_progress=False)
    tokenizer.train_from_iterator(counting(), trainer=first)
    vocabulary = tokenizer.get_vocab()
    known = sorted(
        (letter for letter in letters if letter in vocabulary), key=lambda letter: (-letters[letter], letter)
    )
    alphabet = known[: recipe.limit_alphabet]
    inner = sorted(piece for letter in alphabet if (piece := f"##{letter}") in vocabulary)
    least = len(specials) + len(inner) + len(alphabet)
    if least > recipe.vocab_size:
        reason = (
            f"these texts have {len(alphabet)} letters, which need {least} entries; use a larger vocabulary, or a "
            f"smaller --limit-alphabet than {recipe.limit_alphabet}"
        )
        raise _vocabulary_error(recipe.vocab_size, reason, least=least)
    tokenizer = _wordpiece(recipe)
    trainer = trainers.WordPieceTrainer(
        vocab_size=recipe.vocab_size,
        min_frequency=recipe.min_frequency,
        special_tokens=[*specials, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=shows_progress,
    )
    tokenizer.train_from_iterator(watched, trainer=trainer)
    made = _wordpiece(recipe)
    made.model = models.WordPiece(tokenizer.get_vocab(), unk_token=recipe.special_tokens["unk"])
    made.add_special_tokens(specials)
    return made


def _wordpiece(recipe: TokenizerRecipe) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(unk_token=recipe.special_tokens["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=recipe.lowercase, strip_accents=recipe.strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _train_bpe(watched: Iterable[str], recipe: TokenizerRecipe, shows_progress: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    steps: list[Any] = [normalizers.NFC()]
    if recipe.strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents()]
    if recipe.lowercase:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        min_frequency=recipe.min_frequency,
        special_tokens=list(recipe.special_tokens.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=shows_progress,
    )
    tokenizer.train_from_iterator(watched, trainer=trainer)
    return tokenizer


def _frame(tokenizer: Any, recipe: TokenizerRecipe) -> None:
    """Let it put the special tokens around a text and a pair, as the models of its family were trained."""
    from tokenizers import processors

    cls, sep = recipe.special_tokens["cls"], recipe.special_tokens["sep"]
    pair = f"{cls} $A {sep} $B:1 {sep}:1" if recipe.kind == "wordpiece" else f"{cls} $A {sep} {sep} $B {sep}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=pair,
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
