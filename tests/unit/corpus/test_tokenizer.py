"""Tokenizers that are trained here, loaded again as anybody would."""

import json
from pathlib import Path

import pytest
from raised import raises_code
from transformers import AutoTokenizer

from paratune.corpus import tokenizer as tokenizer_module
from paratune.corpus.tokenizer import RECORD_FILE, Kind, TokenizerRecipe, save_tokenizer, train_tokenizer

TEXTS = ["o jogador marcou um golo", "o guarda-redes não marcou golo nenhum", "um jogo, um golo: 1-0"] * 20


def trained(folder: Path, recipe: TokenizerRecipe, texts: list[str] = TEXTS):
    tokenizer, _ = train_tokenizer(lambda: texts, recipe)
    save_tokenizer(tokenizer, recipe, folder, {})
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "single", "pair"),
    [
        # How BERT and RoBERTa frame texts: Devlin et al. 2019, figure 2; Liu et al. 2019 as in transformers.
        ("wordpiece", "[CLS] golo [SEP]", "[CLS] golo [SEP] jogo [SEP]"),
        ("bpe", "<s>golo</s>", "<s>golo</s></s>jogo</s>"),
    ],
)
def test_texts_and_pairs_are_framed_as_the_family_does(tmp_path: Path, kind: Kind, single: str, pair: str):
    tokenizer = trained(tmp_path / "t", TokenizerRecipe(kind=kind, vocab_size=400))
    assert tokenizer.decode(tokenizer("golo")["input_ids"]) == single
    assert tokenizer.decode(tokenizer("golo", "jogo")["input_ids"]) == pair
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    assert None not in [getattr(tokenizer, name) for name in names]
    assert tokenizer.model_max_length == 512


def test_wordpiece_has_a_type_for_each_text_of_a_pair(tmp_path: Path):
    tokenizer = trained(tmp_path / "t", TokenizerRecipe(vocab_size=400))
    assert tokenizer("golo", "jogo")["token_type_ids"] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_texts_survive_the_archive(tmp_path: Path, kind: Kind):
    tokenizer = trained(tmp_path / "t", TokenizerRecipe(kind=kind, vocab_size=400))
    text = "o guarda redes marcou um golo"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True).strip() == text


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_the_same_texts_give_the_same_tokenizer(kind: Kind):
    # Of 60 words that occur once, ties decide nearly everything.
    texts = [" ".join(chr(97 + (i * j) % 26) * (1 + j % 3) + chr(97 + i % 26) for j in range(1, 7)) for i in range(60)]
    recipe = TokenizerRecipe(kind=kind, vocab_size=400)
    made = {train_tokenizer(lambda: texts, recipe)[0].to_str() for _ in range(5)}
    assert len(made) == 1


def test_the_rarest_letters_are_left_out_of_the_alphabet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizer_module, "MAX_LETTERS", 2)
    recipe = TokenizerRecipe(vocab_size=50)
    tokenizer, _ = train_tokenizer(lambda: ["aaa bbb c"], recipe)
    assert {"a", "b", "##a", "##b"} <= set(tokenizer.get_vocab())
    assert tokenizer.encode("c", add_special_tokens=False).tokens == ["[UNK]"]


def test_the_vocabulary_has_the_size_that_was_asked_for():
    # 5 special tokens; the 3 letters of "aab", "ab" after another (##a, ##b), then what joins them: 5 + 2 + 2 + ...
    tokenizer, counted = train_tokenizer(lambda: ["aab aab ab"], TokenizerRecipe(vocab_size=10))
    assert tokenizer.get_vocab_size() == 10
    assert set(tokenizer.get_vocab()) >= {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b"}
    assert (counted.num_texts, counted.num_characters) == (1, 10)


def test_a_vocabulary_without_room_for_the_letters_is_refused():
    # 5 special tokens, a and b, ##a and ##b: 9.
    with raises_code("tokenizer.unsupported", "--vocab-size", "8", "2", "9"):
        train_tokenizer(lambda: ["aab bba"], TokenizerRecipe(vocab_size=8))


def test_accents_stay_and_case_unless_asked(tmp_path: Path):
    kept_rows = trained(tmp_path / "a", TokenizerRecipe(vocab_size=400))
    assert kept_rows.tokenize("não") == ["não"]
    assert kept_rows.tokenize("GOLO") != ["golo"]
    plain = trained(tmp_path / "b", TokenizerRecipe(vocab_size=400, lowercase=True))
    assert plain.tokenize("NÃO") == ["não"]


def test_the_record_has_the_recipe(tmp_path: Path):
    recipe = TokenizerRecipe(vocab_size=300, lowercase=True)
    trained(tmp_path / "t", recipe)
    written = json.loads((tmp_path / "t" / RECORD_FILE).read_text())
    assert written["recipe"] == {"kind": "wordpiece", "vocab_size": 300, "lowercase": True, "max_length": 512}
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize(
    ("recipe", "refused"),
    [
        (TokenizerRecipe(vocab_size=5), ("tokenizer.unsupported", "--vocab-size", "5", "6", "wordpiece")),
        (
            TokenizerRecipe(kind="bpe", vocab_size=260),
            ("tokenizer.unsupported", "--vocab-size", "260", "261", "bpe"),
        ),
        (TokenizerRecipe(max_length=0), ("cli.invalid_value", "--max-length", "0", "1")),
    ],
)
def test_impossible_recipes_are_refused(recipe: TokenizerRecipe, refused: tuple[str, ...]):
    with raises_code(*refused):
        train_tokenizer(lambda: TEXTS, recipe)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_texts_without_words_are_refused(kind: Kind, texts: list[str]):
    with raises_code("data.empty"):
        train_tokenizer(lambda: texts, TokenizerRecipe(kind=kind, vocab_size=300))
