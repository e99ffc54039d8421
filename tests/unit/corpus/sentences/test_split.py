import pytest

from paratune.corpus.sentences.split import ngram_words, rejection_reason, split_sentences
from paratune.corpus.settings import SentenceSettings

WHOLE = [
    "O Sr. Silva e a Sra. Costa chegaram com o Dr. Sousa.",
    "A Dra. Ana Costa saiu às 10.30 h.",
    "A Eng.ª Maria e o Prof. Doutor J. M. Sousa moram na Av. da República, n.º 5, r/c Dto. em Lisboa.",
    "Ver o n.º 3 do art. 5.º da Lei n.º 12/2004, de 30 de Março.",
    "Cf. o cap. 3 e a fig. 12.",
    "Há frutos, p. ex. maçãs e peras.",
    "Também há legumes, p.ex. couves.",
    "O 1.º classificado ganhou ao 25.º e à 2.ª equipa.",
    "O valor de pi é 3.14159 e a casa custa 1.234,56 euros.",
    "Veja www.exemplo.pt/pagina.html?x=1.",
    "Bem... não sei.",
    "Talvez…",
    "Quem sabe?!",
    '"Vou-me embora."',
    "«Não venhas tarde.»",
    "— Olá — disse ele.",
    "O Arq. Siza nasceu no séc. XX em Matosinhos.",
    "A S.A. fechou e os EUA e a U.E. assinaram.",
    "1. Introdução.",
    "A igreja do Sto. António e da Sta. Maria é velha.",
    "Disse: «Como estás?» e sorriu.",
]


def test_a_hard_sample_in_portuguese():
    assert list(split_sentences(" ".join(WHOLE))) == WHOLE


@pytest.mark.parametrize("sentence", WHOLE)
def test_each_sentence_stays_whole_before_another(sentence):
    assert list(split_sentences(f"{sentence} Depois choveu.")) == [sentence, "Depois choveu."]


def test_a_line_end_ends_a_sentence_and_spaces_are_single():
    assert list(split_sentences("Um título\n\n  O  gato\tdorme. O cão \u00a0 não.\r\n")) == [
        "Um título",
        "O gato dorme.",
        "O cão não.",
    ]


def test_a_lower_case_continuation_is_the_same_sentence():
    assert list(split_sentences('Disse: "Como estás?" e sorriu.')) == ['Disse: "Como estás?" e sorriu.']


def test_odd_characters_end_nothing():
    result = list(split_sentences("Um \U0001f600 gato. Um \x00 cão.\nUma \ufeff ave."))
    assert len(result) == 3
    assert list(split_sentences("")) == []


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("O gato dorme.", "few words"),
        ("O gato dorme - .", "few words"),  # marks are no words
        ("O gato " + "dorme " * 120 + "bem.", "many words"),
        ("O gato dorme 123456789 123456789.", "few letters"),  # 10 letters, 19 others
        ("TODOS OS DIREITOS RESERVADOS ao autor.", "capitals"),
        ("o gato dorme na cama.", "no beginning"),
        ("; O gato dorme na cama.", "no beginning"),
        ("O gato dorme na cama", "no end"),
        ("O gato dorme na cama:", "no end"),
        ("O gato dorme na cama.", None),
        ("«O gato dorme na cama!»", None),
        ("— O gato dorme na cama…", None),
        ("(O gato dorme na cama?)", None),
        ("3 gatos dormem na cama.", None),
        ("Élio dorme na cama.", None),
    ],
)
def test_rejection_reasons_of_sentences(sentence, reason):
    assert rejection_reason(sentence, SentenceSettings()) == reason


def test_the_rule_follows_the_settings():
    assert rejection_reason("o gato dorme", SentenceSettings(min_words=3, whole=False)) is None
    assert rejection_reason("O gato dorme na cama.", SentenceSettings(max_words=4)) == "many words"
    assert rejection_reason("O gato 12345678 dorme na cama.", SentenceSettings(min_letters=0.7)) == "few letters"
    assert rejection_reason("A UE e os EUA.", SentenceSettings(max_capitals=0.9)) is None


def test_words_marks_and_numbers():
    assert ngram_words("Disse-lhe: «O guarda-chuva custou 1.234,56 €.»") == [
        *("disse-lhe", ":", "«", "o", "guarda-chuva", "custou", "0", "€", ".", "»")
    ]
    assert ngram_words("Um copo d'água às 15:30") == ["um", "copo", "d'água", "às", "0"]


def test_special_tokens_never_come_from_words():
    for text in ("<s> </s> <unk>", "a\x00b\x1fc\x85d", "a_b\u2028c"):
        for word in ngram_words(text):
            assert word.split() == [word]
            assert word not in ("<s>", "</s>", "<unk>")
            assert not set(word) & set("\x00\x1f\x85")
