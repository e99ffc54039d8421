import hashlib

import pytest
from corpus_documents import content, document, dropped, extracted, kept, runner

from paratune.corpus.clean.quality import host_and_page, is_cookie_notice, line_key, menu_lines, run_lines
from paratune.corpus.settings import Clean, Corpus, Lines

FOOTER = "Todos os direitos reservados, atualizado em {}"


def run(work, workers=1, **options):
    corpus = Corpus(work=str(work), clean=Clean(lines=Lines(**{"min_pages": 3, "min_words": 4, **options})))
    return run_lines(corpus, work / "3_extract", work / "4_clean/1_lines", runner(workers))


def page(number, host="a.pt", text="A notícia {} conta o que se passou na cidade.", url=None):
    return document(
        f"{text.format('abcdefgh'[number])}\n{FOOTER.format(number)}", number, url=url or f"http://{host}/{number}"
    )


def texts(work):
    return [row["text"] for shard in kept(work / "4_clean/1_lines") for row in shard]


def num_removed(work, *arguments, **options):
    """Run the step, and return the number of lines that it removed from the documents that it kept."""
    run(work, *arguments, **options)
    before = [row for shard in kept(work / "3_extract") for row in shard]
    return sum(row["text"].count("\n") for row in before) - sum(text.count("\n") for text in texts(work))


def test_a_line_of_many_pages_of_a_host_is_cut_and_the_others_stay(tmp_path):
    # The footer is on 3 pages of a.pt, in two shards and with three numbers, and on 2 of b.pt.
    extracted(tmp_path, [page(0), page(1), page(3, "b.pt")], [page(2, "www.a.pt"), page(4, "b.pt")])
    totals = run(tmp_path)
    assert [text.count("\n") for text in texts(tmp_path)] == [0, 0, 1, 0, 1]
    assert texts(tmp_path)[0] == "A notícia a conta o que se passou na cidade."
    assert (totals["kept"], totals["dropped"]) == (5, {})
    row = kept(tmp_path / "4_clean/1_lines")[0][0]
    assert row["sha256"] == hashlib.sha256(row["text"].encode()).hexdigest()


def test_the_name_of_the_work_folder_is_not_interpreted(tmp_path):
    work = tmp_path / "run=3" / "a[b]"
    extracted(work, [page(number) for number in range(3)])
    assert num_removed(work) == 3


def test_captures_of_one_page_are_not_many_pages(tmp_path):
    same = ["http://a.pt/x", "https://www.a.pt/x", "http://a.pt/x/", "http://a.pt/x#top"]
    extracted(tmp_path, [page(number, url=url) for number, url in enumerate(same)])
    assert num_removed(tmp_path) == 0
    extracted(tmp_path / "b", [page(number, url=f"http://a.pt/x?id={number}") for number in range(3)])
    assert num_removed(tmp_path / "b") == 3


def test_a_document_of_which_too_little_is_left_is_dropped(tmp_path):
    extracted(tmp_path, [page(0, text="A notícia"), page(1), page(2), document("Duas palavras", 9)])
    assert run(tmp_path)["dropped"] == {"too little left": 1}
    assert dropped(tmp_path / "4_clean/1_lines") == [
        {"id": "d0", "url": "http://a.pt/0", "reason": "too little left", "detail": "2 of 9 words"}
    ]
    # A short document from which nothing was cut is for the quality to judge.
    assert texts(tmp_path)[-1] == "Duas palavras"


def test_hosts_and_lines_have_one_form():
    assert host_and_page("http://WWW.a.pt/b/") == host_and_page("https://a.pt:8080/b#c")
    assert host_and_page("http://a.pt/b?c=1") != host_and_page("http://a.pt/b?c=2")
    assert host_and_page("http://[a/") == host_and_page("http://[a/")
    assert line_key("  Página 3  de 10") == line_key("PÁGINA 24 de 7")
    assert line_key("Página 3") != line_key("Página")


@pytest.mark.parametrize(
    ("line", "is_notice"),
    [
        ("Este site utiliza cookies para melhorar a sua experiência de navegação.", True),
        ("We use cookies. By continuing you agree to our policy.", True),
        ("Neste sítio usamos cookies.", True),
        ("O programa utiliza um cookie HTTP para saber quem é o utilizador.", False),
        ("A receita de cookies da avó leva manteiga e açúcar.", False),
        ("O regulador multou a empresa. " * 20 + "Os cookies que o site utiliza não pediam consentimento.", False),
        ("Política de privacidade do jornal.", False),
    ],
)
def test_notices_of_cookies(line, is_notice):
    assert is_cookie_notice(line) is is_notice


def test_menus_are_short_lines_together_or_short_parts_in_one():
    text = "Este é o texto da notícia de hoje."
    menu = ["Início", "Quem somos", "Os nossos serviços", "Notícias", "", "Contactos", "Mapa do site"]
    assert menu_lines([text, *menu, text]) == [1, 2, 3, 4, 6, 7]
    assert menu_lines([text, *menu[:4], text]) == []
    assert menu_lines(menu) == [0, 1, 2, 3, 5, 6]
    assert menu_lines(
        ["Início | Quem somos | Notícias | Contactos", "Lisboa - Porto", "Um » Dois » Três » Quatro"]
    ) == [0, 2]
    # Sentences of manuals describe menus.
    assert menu_lines(["Escolha Ficheiro > Novo > Etiquetas > Opções.", "Lisboa - Porto - Faro - Évora - Beja"]) == []
    # What ends as sentences do, or has numbers, is a list of something.
    assert menu_lines(["Sim.", "Não.", "Talvez.", "Hoje?", "Nunca!", "Olá.", "2 ovos", "1 limão", "3 maçãs"] * 2) == []


def test_disabled_rules_keep_lines(tmp_path):
    rows = [
        page(n, text="Este site utiliza cookies\nUm | Dois | Três | Quatro\nA notícia do dia {} na cidade")
        for n in range(3)
    ]
    extracted(tmp_path, rows)
    for options, cut in (
        ({}, 9),
        ({"min_pages": None}, 6),
        ({"min_pages": None, "cookies": False}, 3),
        ({"min_pages": None, "cookies": False, "menus": False}, 0),
    ):
        assert num_removed(tmp_path, **options) == cut


@pytest.mark.slow
def test_workers_change_no_file(tmp_path):
    shards = [
        [page(n % 8, f"{host}.pt", url=f"http://{host}.pt/{n}") for n in range(s, s + 8)]
        for s in (0, 8)
        for host in "ab"
    ]
    for workers in (1, 2):
        extracted(tmp_path / str(workers), *shards)
        assert num_removed(tmp_path / str(workers), workers) == 32
    assert content(tmp_path / "1/4_clean") == content(tmp_path / "2/4_clean")
