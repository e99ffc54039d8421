from paratune.corpus.sentences.words import words_of


def test_words_marks_and_numbers():
    assert words_of("Disse-lhe: «O guarda-chuva custou 1.234,56 €.»") == [
        *("disse-lhe", ":", "«", "o", "guarda-chuva", "custou", "0", "€", ".", "»")
    ]
    assert words_of("Um copo d'água às 15:30") == ["um", "copo", "d'água", "às", "0"]


def test_what_a_model_means_by_marks_of_its_own_is_never_a_word():
    for text in ("<s> </s> <unk>", "a\x00b\x1fc\x85d", "a_b\u2028c"):
        for word in words_of(text):
            assert word.split() == [word]
            assert word not in ("<s>", "</s>", "<unk>")
            assert not set(word) & set("\x00\x1f\x85")
