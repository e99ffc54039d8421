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


HARD = """
Ele saiu ontem.|É tarde.
Ele saiu ontem.|À noite voltou.|Às nove saiu outra vez.
Ele saiu ontem.|Ó Maria, vem cá.
Ele saiu ontem!|África é longe?|Última hora: choveu…|Índia e China assinaram.
Ele saiu ontem.|«Ângela chegou.»|Óscar não veio.
Ele saiu ontem.|12 pessoas ficaram.
Ele saiu em 2004.|25 anos depois voltou.
Comprou maçãs, peras, etc.|Depois saiu.
Comprou maçãs, peras, etc. e saiu.
O Sr. Élio e a Dr.ª Ângela falaram com a Exma. Sra. D. Águeda.
Ver o art. 5.º, o n.º 3 e o art. 12 da lei.
Viveu no séc. XIX.|Depois morreu.
Viveu no séc. V.|Depois veio o séc. VI.|Foi assim.
O rei D. João V.|Depois veio D. José I.|Em 1777 morreu.
Luís XIV reinou.|Morreu Luís XVI.|Depois não.
Mora na R. Augusta, 12.|Lisboa fica longe.
Mora na Av. 5 de Outubro, n.º 12, 3.º Esq. em Lisboa.|É perto do Lg. do Rato.
Ver p. 12, pp. 13-15, tab. 3 e fig. 4.|Fim do capítulo.
O valor é 3.5 ou 1.234,56.|12.5 é mais.
Bem...|É tarde... mas vamos.
«Não sei.»|«É tarde.»|“Vou.”|Saiu.
Disse: "Vou."|É certo.|"Vens?"|Não foi.
Disse que ia (à uma.)|[Riu-se.]|Às duas foi.
Foi o fim.|Começo agora.
Veja www.sapo.pt ou http://a.pt/b.Html.|Depois escreva a ana.Costa@sapo.pt.
Falou com Manuel J. Dos Santos e P. De Souza.|Depois saiu.
É o dia de Martin Luther King Jr. Os outros não.
Foi no dia 3.|Maio foi quente.|Es war am 3. Mai in Wien.
Os autores J. K. Rowling e J. R. R. Tolkien, e A. Álvares.|O livro.
Em 3 de jan. de 2004, a 5 de Fev. de 2005 e em dez. 2006.|Choveu em out. 2007.
Foi ao mar.|12 barcos voltaram às 9.|Às 10 partiram.
Roma, em 44 a.C. César morreu.|A U.E. assinou.|Falou com a U.E.|Os EUA não.
Tomou a vitamina C.|A dose era alta.|Era o plano B.|Não havia outro.|Pese 50 g.|Misture em 200 ms.|Sirva.
— É tarde — disse.|— Às nove?|— Ó mãe!
1. Índice.|2. Às vezes chove.|IV. Época.
O custo é de 5 €.|10 % são taxas.|É pouco, cf. Álvares, p. ex. Ângelo.
Saiu.|¿É tarde?|* Às nove.|• 3 gatos.
Mr. Smith and Dr. Élan met Mrs. J. Doe at 5 p.m. on St. James St. in Washington.|It rained.
See No. 5, Fig. 3 and vol. 2.|He said no.|I left.|12 people came.
Inc. and Ltd. are short.|He lives in the U.S.|The U.S. Senate met on T.V.|I saw it.
El Sr. Álvarez y la Sra. Íñiguez salieron.|Él volvió.|¿Qué?|¡Óscar!|Vive en la Avda. América, núm. 5.
Ud. María y Dña. Ángela.|3 horas después llovió.|Ver pág. 12 y art. 3.
M. Élie et Mme. Durand sont là.|À demain !|« Ça va ? »|Été comme hiver, cf. p. 5.|Ô temps !
Hr. Öztürk und Dr. Ärmel kamen.|Über 100 blieben.|Ähnlich war es am 3. Mai und im 19. Jahrhundert.
A empresa Silva & Cia. Lda. fechou as portas em dez. de 2010.|Era da Costa & Cia.|Depois mudou.
(cf. cap. IV, vv. 3-5, ed. Porto Ed. 1990) diz que não.|Saiu a 2.ª ed.|O livro é bom.|Ver v. 7 e ed. 1990.
A II. Guerra Mundial foi pior.|Der II. Weltkrieg auch.|Morreu Luís XVI.|Paris ardeu.
Obs. O texto é velho.
P.S. Não te esqueças.|Vem.
Siehe Nr. 5, Abb. 3 und Bd. 2, d. h. Äpfel, z. B. Birnen, usw.|Die Str. 5 ist weit.|25 Jahre vergingen.
""".strip().split("\n")
"""Lines of one space between sentences; | marks each cut."""


@pytest.mark.parametrize(
    "first", ["Ele saiu.", "Ele saiu!", "Ele saiu…", "(Ele saiu.)", "«Saiu.»", "Em 2004.", "Ele riu etc."]
)
def test_words_with_an_accent_and_numbers_begin_sentences(first):
    for word in ("É", "À", "Às", "Ó", "Á", "Ú", "Í", "Â", "Último", "12", "3.º", "«É", "— Às", "“3"):
        assert list(split_sentences(f"{first} {word} tarde.")) == [first, f"{word} tarde."]


@pytest.mark.parametrize("line", HARD)
def test_hard_lines_are_cut_where_expected(line):
    assert "|".join(split_sentences(line.replace("|", " "))) == line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Foi o fim.Começo agora.", ["Foi o fim.", "Começo agora."]),
        ("Acabou!É tarde?Não.Às nove.", ["Acabou!", "É tarde?", "Não.", "Às nove."]),
        ("Vive em Lisboa.Os pais não.", ["Vive em Lisboa.", "Os pais não."]),
        ("Fechou em 2004.Depois reabriu.", ["Fechou em 2004.", "Depois reabriu."]),
        ("Foi (ontem).Depois choveu.", ["Foi (ontem).", "Depois choveu."]),
        ("Instale o Node.Js, leia a.Costa@sapo.pt, doc.Title.Text e dp.Initialize(a).", 1),
        ("Abra http://sapo.pt/fim.Html e ficheiro.Txt2.", 1),
        ("A U.E.Europa, o Sr.Silva e o n.ºDois.", 1),
        ("Não quero disso.“Claro que sim”, disse.", ["Não quero disso.", "“Claro que sim”, disse."]),
        ('Não quero disso."Claro que sim", disse.', ["Não quero disso.", '"Claro que sim", disse.']),
        ("Não quero disso.«Claro que sim»", ["Não quero disso.", "«Claro que sim»"]),
        ("Não vou a Lisboa.“Chove sempre”.", ["Não vou a Lisboa.", "“Chove sempre”."]),
        ("„Ich gehe.“Er blieb.", ["„Ich gehe.“", "Er blieb."]),
        ('"Vou embora."Ele ficou.', ['"Vou embora."', "Ele ficou."]),
        ("“Vou embora.”Ele ficou.", ["“Vou embora.”", "Ele ficou."]),
        ("Não quero.—Claro que sim.(Riu-se.)", ["Não quero.", "—Claro que sim.", "(Riu-se.)"]),
        ("Sim...Não sei.", ["Sim...", "Não sei."]),
        ("O quê?!Não acredito.", ["O quê?!", "Não acredito."]),
        ("Às 20h00.O baile subiu 5%.A inflação de 1950.Morreu.", 1),
        ("Disse “a.b.C” e “fim.”, e não.", 1),
        ("我爱你。你好吗？好。", ["我爱你。", "你好吗？", "好。"]),
    ],
)
def test_a_missing_space_is_seen_where_words_show_it(text, expected):
    assert list(split_sentences(text)) == ([text] if expected == 1 else expected)


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
