import hashlib
import time

import pytest
from corpus_documents import document, extracted, kept, runner
from raised import raises_code

from paratune.corpus.clean.personal import check_region, mask, run_personal
from paratune.corpus.settings import Clean, Corpus, Personal

ALL = Personal()


def masked(text, **options):
    return mask(text, Personal(**options))[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Escreva para maria.silva+aviso@correio.exemplo.pt.", "Escreva para <EMAIL>."),
        ("<joão_99@exemplo.com.br>, obrigado", "<<EMAIL>>, obrigado"),
        ("geral [at] exemplo [ponto] pt", "<EMAIL>"),
        ("secretaria(arroba)exemplo.pt", "<EMAIL>"),
        ("maria.silva [at] exemplo.pt", "<EMAIL>"),
        ("a@b.com.museum e c@d.museum", "<EMAIL> e <EMAIL>"),
        ("nome\u00a0[at]\u00a0sapo\u00a0[ponto]\u00a0pt", "<EMAIL>"),
        ("@primeiro_ministro disse", "@primeiro_ministro disse"),
        ("custa 3 @ 5 euros", "custa 3 @ 5 euros"),
    ],
)
def test_addresses_of_email(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "uma arroba de carne",
        "duas arrobas ponto final",
        "Comprou uma arroba. Ponto final.",
        "O símbolo arroba separa ponto com ponto br.",
        "nome [arroba] sapo ponto final",
        "Está em sapo ponto pt, ou ponto com.",
        "We meet at example dot com.",
    ],
)
def test_arroba_and_ponto_are_words_too(text):
    assert mask(text, ALL) == (text, 0)


# The plan of ANACOM: 2 for places (21, 22: two digits), 91, 92, 93 and 96 mobile, 30 nomadic, 80 free of charge.
@pytest.mark.parametrize(
    "number",
    [
        *("912345678", "912 345 678", "91 234 56 78", "213 456 789", "21 345 67 89", "253-123-456", "(21) 345 67 89"),
        *("+351 912 345 678", "+351912345678", "(+351) 21 345 67 89", "00351 213456789", "+351 253 123 456"),
        *("912\u00a0345\u00a0678", "21\u202f345\u202f67\u202f89", "213\u2009456\u2009789"),
        *("300 123 456", "800 200 300", "+55 11 91234-5678", "+34 912 345 678"),
    ],
)
def test_telephone_numbers(number):
    assert masked(f"Ligue-nos, {number}, ou venha cá.") == "Ligue-nos, <PHONE>, ou venha cá."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tel./Fax: 213.456.789", "Tel./Fax: <PHONE>"),
        ("telefone n.º 213456789", "telefone n.º <PHONE>"),
        ("Tel. 213 456 789 / 213 456 780", "Tel. <PHONE> / <PHONE>"),
    ],
)
def test_a_word_before_it_makes_a_number_a_telephone_number(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Em 25/12/2014, às 21:30, 2014-01-03 e 3.1.2014.",
        "Capturado em 20140103030321.",
        "ISBN 972-0-04567-8, ISBN 978-972-0-04567-8, ISBN 9720045678 e ISSN 0874-1234.",
        "Custa 12,50 €, 1.234,56 euros, 1 234 567,89 EUR ou 234 567 890 euros.",
        "A dívida é de € 213 456 789, e o PIB de 212.345.678 contos.",
        "Viviam ali 212.345.678 ou 234 567 890 habitantes.",
        "Decreto-Lei n.º 48/95, processo n.º 213456789/2012, ref. 912345678.",
        "Veja http://exemplo.pt/artigo/912345678 e www.exemplo.pt/213456789.",
        "O código postal é 1000-001 Lisboa; a porta, 213.",
        "O IP 192.168.100.200 e a versão 2.13.4567.89 falharam 100 000 000 vezes.",
        "De 1999 a 2004 (págs. 213-456) e no volume 21.",
    ],
)
def test_other_numbers_are_left_as_they_are(text):
    assert mask(text, ALL) == (text, 0)


# 501 964 843: the documentation of python-stdnum. 123 456 789: 9*1 + 8*2 + 7*3 + 6*4 + 5*5 + 4*6 + 3*7 + 2*8 = 156,
# 156 mod 11 = 2, and 11 - 2 = 9 is the last digit. 234 567 899: 9*2 + 8*3 + 7*4 + 6*5 + 5*6 + 4*7 + 3*8 + 2*9 = 200,
# 200 mod 11 = 2, 9: it could be a telephone number of Leiria (23x) too, and its neighbours fail. 701 000 007, an
# undivided estate (the first digits are those of Wikipedia's article on the NIF): 9*7 + 7*1 = 70, 70 mod 11 = 4,
# 11 - 4 = 7. 730 000 001 has its check digit too (87 mod 11 = 10, 11 - 10 = 1), and no range is 73.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NIF 123456789", "NIF <NIF>"),
        ("NIF: 501 964 843.", "NIF: <NIF>."),
        ("Contribuinte n.º 123.456.789", "Contribuinte n.º <NIF>"),
        ("NIF: 501-964-843, Évora", "NIF: <NIF>, Évora"),
        ("contribuinte 50 196 48 43", "contribuinte <NIF>"),
        ("número de identificação fiscal PT501964843", "número de identificação fiscal <NIF>"),
        ("NIPC 234567899", "NIPC <NIF>"),
        ("o titular, 123456789, declara", "o titular, <NIF>, declara"),
        ("a herança, 701000007, e o fundo", "a herança, <NIF>, e o fundo"),
        ("a herança, 730000001, e o fundo", "a herança, 730000001, e o fundo"),
        ("NIF\u00a0501\u00a0964\u00a0843", "NIF\u00a0<NIF>"),
        ("NIF 123456788", "NIF 123456788"),
        ("os 123456789 euros", "os 123456789 euros"),
        ("são 123 456 789", "são 123 456 789"),
    ],
)
def test_tax_numbers_by_their_check_digit(text, expected):
    assert masked(text) == expected


def test_ibans_by_their_check_digits():
    # PT50 0002 ...: the example of the Portuguese structure in the registry of ISO 13616; GB82: that of Wikipedia.
    assert masked("IBAN PT50 0002 0123 1234 5678 9015 4 BANCO") == "IBAN <IBAN> BANCO"
    assert masked("PT50000201231234567890154; GB82 WEST 1234 5698 7654 32") == "<IBAN>; <IBAN>"
    assert masked("PT50\u00a00002\u00a00123\u202f1234 5678 9015 4 BANCO") == "<IBAN> BANCO"
    assert masked("PT50.0002.0123.12345678901.54. Banco") == "<IBAN>. Banco"
    # A code and a number of something else look like its beginning.
    assert masked("CP10 PT50 0002 0123 1234 5678 9015 4") == "CP10 <IBAN>"
    assert masked("AB12-AB12-PT50000201231234567890154 GB82WEST12345698765432") == "AB12-AB12-<IBAN> <IBAN>"
    assert masked("PT51 0002 0123 1234 5678 9015 4", kinds=["iban"]) == "PT51 0002 0123 1234 5678 9015 4"


def test_only_the_kinds_that_are_named_are_masked():
    text = "a@b.pt, 912 345 678, NIF 123456789"
    assert masked(text, kinds=["email"]) == "<EMAIL>, 912 345 678, NIF 123456789"
    assert masked(text, kinds=["nif"]) == "a@b.pt, 912 345 678, NIF <NIF>"


def test_numbers_without_a_country_are_those_of_the_region():
    assert masked("Ligue (11) 3123-4567.", region="BR") == "Ligue <PHONE>."
    assert masked("Ligue (11) 3123-4567.") == "Ligue (11) 3123-4567."


def test_documents_are_counted_and_hashed_anew(tmp_path):
    plain = document("Nada a esconder.", 0, title="Olá")
    telling = document("Para a@b.pt ou 912 345 678.", 1, title="Casa de c@d.pt")
    corpus = Corpus(work=str(tmp_path), clean=Clean())
    folder = tmp_path / "4_clean" / "7_personal"
    totals = run_personal(corpus, extracted(tmp_path, [plain, telling]), folder, runner())
    assert (totals["kept"], totals["dropped"]) == (2, {})
    first, second = kept(folder)[0]
    assert first == plain | {"num_masked": 0}
    assert (second["text"], second["title"], second["num_masked"]) == (
        "Para <EMAIL> ou <PHONE>.",
        "Casa de <EMAIL>",
        3,
    )
    assert second["sha256"] == hashlib.sha256(b"Para <EMAIL> ou <PHONE>.").hexdigest()


def test_a_region_that_is_not_known_is_refused():
    with raises_code("config.invalid_value", key="clean.personal.region", value="XY"):
        check_region(Personal(region="XY"))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a" * 200_000,
            "a." * 100_000,
            "a@" * 100_000,
            "a@b.pt " * 40_000,
            "1 " * 100_000,
            "A1" * 100_000,
            "NIF " * 50_000,
        ),
        *("AB12-" * 40_000, "a [ponto] " * 25_000, "b(at)c[dot] " * 12_000, "x(at)" + "c(dot)" * 25_000),
    ],
)
def test_hostile_texts_take_no_longer_than_others(text):
    start = time.process_time()
    mask(text, ALL)
    assert time.process_time() - start < 10
