"""Names that stand for the same thing by the names and the text of one document."""

import pytest
from hostile_text import texts
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_time import too_slow

from graphrag_ray.base.ids import entity_key
from graphrag_ray.graph.document_names import (
    MAX_EVIDENCE,
    NameAlias,
    document_aliases,
    merge_document_aliases,
)
from graphrag_ray.graph.name_rules import RULES

TYPES = ["", "PERSON", "ORGANIZATION", "LOCATION", "WORK", "PRODUCT", "CONCEPT", "EVENT", "DISEASE"]


def resolved(names: dict[str, str], *texts: str, rules: tuple[str, ...] = RULES) -> dict[str, str]:
    return {alias.name: alias.canonical for alias in document_aliases(names, texts, rules)}


def people(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "PERSON")


# In a document


def test_a_short_name_stands_for_the_only_full_name_that_contains_it():
    names = people("SATYA", "NADELLA", "MR NADELLA", "SATYA NADELLA", "BILL GATES", "GATES")
    full = dict.fromkeys(["SATYA", "NADELLA", "MR NADELLA"], "SATYA NADELLA")
    assert resolved(names) == {**full, "GATES": "BILL GATES"}


@pytest.mark.parametrize("short", ["J. KENNEDY", "J. F. KENNEDY", "JOHN KENNEDY"])
def test_initials_and_left_out_middle_names_are_short_names(short: str):
    names = people(short, "JOHN FITZGERALD KENNEDY")
    assert resolved(names) == {short: "JOHN FITZGERALD KENNEDY"}


def test_a_short_name_of_two_full_names_stays():
    assert resolved(people("STRAUSS", "JOHANN STRAUSS", "RICHARD STRAUSS")) == {}


def test_spellings_of_one_full_name_count_once():
    names = people("NADELLA", "SATYA NADELLA", "DR SATYA NADELLA", "SATYA-NADELLA", "SATYA N. NADELLA")
    assert resolved(names)["NADELLA"] == "SATYA N. NADELLA"


@pytest.mark.parametrize(
    ("short", "short_type", "full", "full_type"),
    [
        ("WASHINGTON", "LOCATION", "GEORGE WASHINGTON", "PERSON"),
        ("MRS BENNET", "PERSON", "ELIZABETH BENNET", "PERSON"),
        ("EDWARD", "PERSON", "EDWARD III", "PERSON"),
        ("ERNEST HEMINGWAY", "PERSON", "ERNEST HEMINGWAY HOUSE", "PERSON"),
        ("CLAUDE LYON", "PERSON", "FERGUS MICHAEL CLAUDE LYON", "PERSON"),
        ("MUHAMMAD BIN SAUD", "PERSON", "ABDULAZIZ BIN MUHAMMAD BIN SAUD", "PERSON"),
        ("KIM JONG", "PERSON", "KIM JONG-UN", "PERSON"),
        ("FRANCE", "PERSON", "PHILIP OF FRANCE", "PERSON"),
        ("SEATTLE", "ORGANIZATION", "SEATTLE ASIAN ART MUSEUM", "ORGANIZATION"),
        ("BIOCHEMICAL SOCIETY", "ORGANIZATION", "BIOCHEMICAL SOCIETY TRANSACTIONS", "WORK"),
        ("MACHINE LEARNING", "CONCEPT", "MACHINE LEARNING TEXTBOOK", "CONCEPT"),
        ("법관", "PERSON", "대법관", "PERSON"),
    ],
)
def test_parts_that_are_no_short_names_stay(short: str, short_type: str, full: str, full_type: str):
    assert resolved({short: short_type, full: full_type}) == {}


def test_generic_words_may_be_left_out_of_organizations():
    names = dict.fromkeys(["STANFORD", "STANFORD UNIVERSITY", "OSLO AIRPORT"], "ORGANIZATION")
    names["OSLO REGIONAL AIRPORT"] = "ORGANIZATION"
    assert resolved(names) == {"STANFORD": "STANFORD UNIVERSITY", "OSLO AIRPORT": "OSLO REGIONAL AIRPORT"}


def test_an_acronym_stands_for_the_name_that_it_follows_in_brackets():
    names = dict.fromkeys(["SEC", "SECURITIES AND EXCHANGE COMMISSION", "SOUTHEASTERN CONFERENCE"], "")
    text = "It told the U.S. Securities and Exchange Commission (SEC) in May."
    assert document_aliases(names, [text]) == [
        NameAlias(
            "SEC",
            "SECURITIES AND EXCHANGE COMMISSION",
            "acronym",
            'defined as "Securities and Exchange Commission (SEC)"',
        )
    ]


@pytest.mark.parametrize(
    ("full", "term", "text"),
    [
        ("Acme Widgets Corporation", "Company", 'Acme Widgets Corporation (the "Company") sells them.'),
        ("Acme Widgets Corporation", "Acme", "Acme Widgets Corporation (“Acme”) sells them."),
        ("아랍에미리트", "UAE", "아랍에미리트(UAE)에 파견한다."),
        (
            "독점규제 및 공정거래에 관한 법률",
            "공정거래법",
            "「독점규제 및 공정거래에 관한 법률」(이하 “공정거래법”이라 한다)",
        ),
        ("全国人民代表大会", "全国人大", "全国人民代表大会（以下简称“全国人大”）"),
    ],
)
def test_terms_defined_in_brackets_are_aliases(full: str, term: str, text: str):
    names = {entity_key(full): "", entity_key(term): ""}
    assert resolved(names, text) == {entity_key(term): entity_key(full)}


@pytest.mark.parametrize(
    ("before", "term", "text"),
    [
        ("GALICIA", "SPAIN", "Born in Galicia (Spain)."),
        ("LENORE", "FAMKE JANSSEN", "He meets Lenore (Famke Janssen)."),
        ("NICKI MINAJ", "MASSIVE ATTACK", 'songs by Nicki Minaj ("Massive Attack")'),
        ("OSLO", "NATO", "a meeting in Oslo (NATO)"),
    ],
)
def test_other_brackets_define_nothing(before: str, term: str, text: str):
    assert resolved({before: "", term: ""}, text) == {}


def test_an_acronym_with_two_meanings_in_a_document_stays():
    fulls = ["COMMON MONETARY AREA", "COUNTRY MUSIC ASSOCIATION"]
    names = dict.fromkeys(["CMA", *fulls], "ORGANIZATION")
    assert resolved(names, "Common Monetary Area (CMA), Country Music Association (CMA)") == {}
    assert resolved(names) == {}


def test_an_undefined_acronym_of_three_letters_stands_for_the_only_name_with_its_initials():
    names = {"SACU": "ORGANIZATION", "SOUTHERN AFRICAN CUSTOMS UNION": "ORGANIZATION"}
    assert resolved(names) == {"SACU": "SOUTHERN AFRICAN CUSTOMS UNION"}
    assert resolved({"DC": "LOCATION", "DISCOVERY CHANNEL": "LOCATION"}) == {}
    assert resolved({"ACM": "ORGANIZATION", "ANN CATHERINE MOORE": "PERSON"}) == {}


def test_two_letters_are_enough_only_near_the_full_name():
    names = {"ML": "ORGANIZATION", "MACHINE LEARNING": "CONCEPT"}
    near = "They use machine learning, or ML, every day."
    assert document_aliases(names, [near])[0].evidence == 'spelled out nearby: "machine learning, or ML"'
    assert resolved(names, "Machine learning. " + "They use it every day. " * 30 + "ML.") == {}


def test_a_definition_counts_more_than_types():
    names = {"SAM": "PERSON", "SEATTLE ART MUSEUM": "ORGANIZATION"}
    assert resolved(names, "the Seattle Art Museum (SAM)") == {"SAM": "SEATTLE ART MUSEUM"}
    assert resolved(names, "the Seattle Art Museum") == {}


def test_types_of_a_closed_schema_count_more_than_a_definition():
    names, text = {"SAM": "VIRUS", "SEATTLE ART MUSEUM": "BODY"}, "the Seattle Art Museum (SAM)"
    assert [alias.name for alias in document_aliases(names, [text])] == ["SAM"]
    assert document_aliases(names, [text], RULES, frozenset({"VIRUS", "BODY"})) == []


def test_chains_of_aliases_are_resolved():
    names = {"SNB": "ORGANIZATION", "SWISS NATIONAL BANK": "ORGANIZATION", "SWISS NATIONAL": "ORGANIZATION"}
    aliases = resolved(names)
    assert aliases == {"SNB": "SWISS NATIONAL BANK", "SWISS NATIONAL": "SWISS NATIONAL BANK"}


def test_cyclic_definitions_end():
    names = {"BIG RED DOG": "", "DOG RED BIG": "", "BRD": "", "DRB": ""}
    text = 'Big Red Dog (the "DRB"), DRB (the "Big Red Dog"), Dog Red Big (BRD), BRD (the "Dog Red Big")'
    aliases = resolved(names, text)
    assert not {*aliases} & {*aliases.values()}


def test_given_names_and_surnames_first_are_merged_in_one_document():
    assert len(resolved(people("JEAN-LUC", "JEAN LUC"))) == 1
    assert len(resolved(people("DAN IOSIF", "IOSIF DAN"))) == 1


@pytest.mark.parametrize(
    ("a", "b", "type_"),
    [
        ("MURTALA MOHAMMED AIRPORT", "MURTALA MUHAMMED AIRPORT", "LOCATION"),
        ("JUANITA NIELSEN", "JUANITA NIELSON", "PERSON"),
        ("ASUR FERNÁNDEZ", "ANSUR FERNÁNDEZ", "PERSON"),
        ("REGINALD OF PIPERNO", "REGINALD OF PRIVERNO", "PERSON"),
        ("제10조의2", "제10조의2(신상정보 제공)", "WORK"),
    ],
)
def test_variants_in_one_document_are_merged(a: str, b: str, type_: str):
    assert len(resolved({a: type_, b: type_})) == 1


@pytest.mark.parametrize(
    ("a", "b", "type_"),
    [
        ("PARVIZ SAYYAD", "PARVIN SAYYAD", "PERSON"),
        ("MARIA ROSSI", "MARIO ROSSI", "PERSON"),
        ("VAN DUSEN", "VAN DUSER", "PERSON"),
        ("EARL OF HERTFORD", "EARL OF HEREFORD", "PERSON"),
        ("NORODOM SIHANOUK", "NORODOM SIHAMONI", "PERSON"),
        ("SOUTH AUSTRALIA", "SOUTH AUSTRALIAN", "LOCATION"),
        ("ROUTE A1234", "ROUTE A1235", "LOCATION"),
        ("BRIC", "BRICS", "ORGANIZATION"),
    ],
)
def test_similar_names_in_one_document_stay(a: str, b: str, type_: str):
    assert resolved({a: type_, b: type_}) == {}


def test_plurals_of_proper_names_stay():
    names = dict.fromkeys(["VIKING", "VIKINGS", "GOOGLE", "GOOGLES"], "ORGANIZATION")
    assert resolved(names, "Every Viking, most Vikings, the Googles and Google") == {"VIKINGS": "VIKING"}


def test_rules_can_be_switched_off():
    names = people("NADELLA", "SATYA NADELLA")
    assert resolved(names, rules=("spelling", "acronym")) == {}


# In the whole corpus


def alias(name: str, canonical: str, rule: str = "acronym", evidence: str = "the only name") -> NameAlias:
    return NameAlias(name, canonical, rule, evidence)


def test_an_acronym_holds_everywhere_if_all_documents_agree():
    defined = alias("SEC", "SECURITIES COMMISSION", evidence='defined as "Securities Commission (SEC)"')
    same = alias("SEC", "SECURITIES COMMISSION")
    assert merge_document_aliases([same, defined]) == [defined]
    assert merge_document_aliases([defined, alias("SEC", "SOUTHEASTERN CONFERENCE")]) == []


def test_a_short_name_of_an_organization_holds_everywhere_if_two_documents_agree():
    (known,) = document_aliases(dict.fromkeys(["STANFORD", "STANFORD UNIVERSITY"], "ORGANIZATION"), [])
    assert merge_document_aliases([known, known]) == [known]
    assert merge_document_aliases([known]) == []


def test_weak_aliases_hold_in_their_document_only():
    assert merge_document_aliases([alias("CBS", "COMIC BOOK SUPERHERO")]) == []
    assert merge_document_aliases([alias("ML", "MACHINE LEARNING")]) == []
    assert merge_document_aliases([alias("ML", "MACHINE LEARNING")] * 2) != []
    assert merge_document_aliases([alias("SATYA", "SATYA NADELLA", "short_name")] * 2) == []
    assert merge_document_aliases([alias("CSAIL", "COMPUTER SCIENCE LAB")]) != []


# Any text

NAMES = st.dictionaries(texts().map(entity_key), st.sampled_from(TYPES), max_size=12)


@settings(max_examples=150, deadline=None)
@given(NAMES, st.lists(texts(), max_size=3), st.randoms(use_true_random=False))
def test_aliases_of_any_text_are_resolved_and_independent_of_order(names, passages, random):
    aliases = document_aliases(names, passages)
    assert not {a.name for a in aliases} & {a.canonical for a in aliases}
    assert {name for a in aliases for name in a[:2]} <= {*names}
    assert all(a.rule in RULES and 0 < len(a.evidence) <= MAX_EVIDENCE for a in aliases)
    shuffled = list(names.items())
    random.shuffle(shuffled)
    assert document_aliases(dict(shuffled), passages) == aliases


# Time


@pytest.mark.parametrize(
    "name",
    ["ANN {} SMITH", "SMITH {}", "{} NATIONAL BANK GROUP", "JOHN A{}NDERSEN", "{}", "MR {}", "X({})"],
)
def test_time_grows_linearly_with_names_that_share_a_word(name: str):
    def names(n: int) -> dict[str, str]:
        letters = str.maketrans("0123456789", "ABCDEFGHIJ")
        return {name.format(str(i).translate(letters)): TYPES[i % 4] for i in range(n)}

    assert too_slow(lambda found: document_aliases(found, []), names, 2_000) == ""


@pytest.mark.timeout(120)
def test_a_hundred_thousand_names_that_share_a_word_have_no_aliases():
    letters = str.maketrans("0123456789", "ABCDEFGHIJ")
    names = people(*(f"{str(i).translate(letters)} SMITH" for i in range(100_000)), "SMITH")
    assert "SMITH" not in resolved(names, rules=("spelling", "short_name"))


@pytest.mark.parametrize(
    "unit",
    ["Securities and Exchange Commission (SEC) ", "(", "(SEC", "(the “", "(이하 “", "A. ", "SEC (", "「"],
)
def test_time_grows_linearly_with_the_text(unit: str):
    names = {"SEC": "", "SECURITIES AND EXCHANGE COMMISSION": ""}
    assert too_slow(lambda text: document_aliases(names, [text]), unit.__mul__, 20_000) == ""
