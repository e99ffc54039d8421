from paratune.corpus.sentences.words import ngram_words


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
