"""Names that stand for the same thing anywhere in a corpus, and names that do not, by rule."""

import pytest
from hostile_text import texts
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag_ray.base.ids import entity_key
from graphrag_ray.graph.name_rules import MAX_NAME, RULES, may_merge, preferred, rule_keys

TYPES = ["", "PERSON", "ORGANIZATION", "LOCATION", "WORK", "PRODUCT", "CONCEPT", "EVENT", "DISEASE"]


def merging_rules(a: str, b: str, type_: str = "", type_b: str | None = None) -> set[str]:
    """The rules that merge two names anywhere in a corpus."""
    type_b = type_ if type_b is None else type_b
    common = {*rule_keys(a, type_)} & {*rule_keys(b, type_b)}
    return {rule for rule, _ in common if may_merge(a, type_, b, type_b, rule)}


# Anywhere in a corpus


@pytest.mark.parametrize(
    ("a", "b", "type_"),
    [
        ("KIM JONG UN", "KIM JONG-UN", "PERSON"),
        ("U.S.", "US", "LOCATION"),
        ("J. R. R. TOLKIEN", "J.R.R. TOLKIEN", "PERSON"),
        ("THE TOAST OF THE TOWN", "TOAST OF THE TOWN", "WORK"),
        ("HEY, PORTER", "HEY PORTER", "WORK"),
        ("O’REILLY MEDIA", "O'REILLY MEDIA", "ORGANIZATION"),
        ("BETTER TOMORROW III", "BETTER TOMORROW 3", "WORK"),
        ("RESOLUTION NO. 1373", "RESOLUTION 1373", "WORK"),
        ("ＡＢＣ商事", "ABC商事", "ORGANIZATION"),
        ("「特許法」", "特許法", "WORK"),
        ("향토예비군 설치법", "향토예비군설치법", "WORK"),
        ("第44條第1項", "제44조제1항", "WORK"),
        ("СЕМЁН ОРЛОВ", "СЕМЕН ОРЛОВ", "PERSON"),
        ("مُحَمَّد علي", "محمد علي", "PERSON"),
        ("ΑΘΉΝΑ", "ΑΘΗΝΑ", "LOCATION"),
        ("김 태 완", "김태완", "PERSON"),
        ("시장ㆍ군수", "시장․군수", "PERSON"),
    ],
)
def test_spellings_of_one_name_are_merged(a: str, b: str, type_: str):
    assert "spelling" in merging_rules(entity_key(a), entity_key(b), type_)


@pytest.mark.parametrize(
    ("rule", "a", "b", "type_"),
    [
        ("spacing", "OPEN AI", "OPENAI", "ORGANIZATION"),
        ("accents", "SÃO PAULO", "SAO PAULO", "LOCATION"),
        ("accents", "WISŁAWA SZYMBORSKA", "WISLAWA SZYMBORSKA", "PERSON"),
        ("abbreviation", "ST LOUIS", "SAINT LOUIS", "LOCATION"),
        ("abbreviation", "U.S.A.", "UNITED STATES", "LOCATION"),
        ("plural", "NEURAL NETWORKS", "NEURAL NETWORK", "CONCEPT"),
        ("plural", "FORMS 10-Q", "FORM 10-Q", "WORK"),
        ("plural", "TRS-80S", "TRS-80", "PRODUCT"),
        ("plural", "GLOSSARIES", "GLOSSARY", ""),
        ("plural", "NATURAL PHENOMENA", "NATURAL PHENOMENON", "CONCEPT"),
        ("order", "DRAMA WAR FILM", "WAR DRAMA FILM", "CONCEPT"),
        ("legal_form", "ELI LILLY AND COMPANY", "ELI LILLY", "ORGANIZATION"),
        ("legal_form", "SIEMENS AG", "SIEMENS", "ORGANIZATION"),
        ("legal_form", "株式会社日立製作所", "日立製作所", "ORGANIZATION"),
        ("title", "DR. SATYA NADELLA", "SATYA NADELLA", "PERSON"),
        ("title", "KING EDWARD VII", "EDWARD VII", "PERSON"),
        ("title", "김태완 의원", "김태완", "PERSON"),
        ("title", "예산분석관 김태완", "김태완", "PERSON"),
        ("title", "李明教授", "李明", "PERSON"),
        ("order", "LEE, ANN", "ANN LEE", "PERSON"),
        ("order", "MILITARY UNIVERSITY SCHOOL OF VENEZUELA", "UNIVERSITY MILITARY SCHOOL OF VENEZUELA", ""),
        ("misspelling", "OSCAR LINDQVIST", "OSKAR LINDQVIST", "PERSON"),
        ("misspelling", "GABRIEL DE VALLSECA", "GABRIEL DE VALSECA", "PERSON"),
        ("misspelling", "LOUIS DE LUXEMBOURG", "LOUIS OF LUXEMBOURG", "PERSON"),
        ("misspelling", "SAM SCHILLACI", "SAM SCHILLACE", "PERSON"),
    ],
)
def test_each_rule_merges_names(rule: str, a: str, b: str, type_: str):
    a, b = entity_key(a), entity_key(b)
    assert rule in merging_rules(a, b, type_)
    assert rule in merging_rules(b, a, type_)
    assert rule not in {found for found, _ in rule_keys(a, type_, set(RULES) - {rule})}


@pytest.mark.parametrize(
    ("a", "b", "type_"),
    [
        # numbers and numerals
        ("JOHANN STRAUSS II", "JOHANN STRAUSS III", "PERSON"),
        ("EDWARD I OF ENGLAND", "EDWARD II OF ENGLAND", "PERSON"),
        ("GEORGE V", "GEORGE VI", "PERSON"),
        ("SR-2023-052", "SR-2023-053", "WORK"),
        ("ROUTE 1 01", "ROUTE 10 1", "LOCATION"),
        ("EARLY 1980S", "EARLY 1980", "CONCEPT"),
        ("CHATGPT-3", "CHATGPT-4", "PRODUCT"),
        ("제10조", "제11조", "WORK"),
        # people
        ("SAMMY DAVIS JR.", "SAMMY DAVIS SR.", "PERSON"),
        ("SAMMY DAVIS JR.", "SAMMY DAVIS", "PERSON"),
        ("MR ANN LEE", "MRS ANN LEE", "PERSON"),
        ("SAMUEL TAYLOR COLERIDGE", "SAMUEL COLERIDGE-TAYLOR", "PERSON"),
        ("ANN BEATRICE LEE", "ANN BARBARA LEE", "PERSON"),
        ("JOHN LOUIS", "LOUIS JOHN", "PERSON"),
        ("JEAN-BAPTISTE", "JEAN BAPTISTE", "PERSON"),
        ("LIANG NA", "LIANG JI", "PERSON"),
        ("MARIA ROSSI", "MARIO ROSSI", "PERSON"),
        ("FORD", "FORDS", "PERSON"),
        ("EARL OF HERTFORD", "EARL OF HEREFORD", "PERSON"),
        # other things
        ("MÜLLER", "MÚLLER", "PERSON"),
        ("GEORGETOWN", "GEORGE TOWN", "LOCATION"),
        ("BODY WATER", "WATER BODY", "CONCEPT"),
        ("BANK OF NEW ENGLAND", "NEW BANK OF ENGLAND", "ORGANIZATION"),
        ("NEW YORK NETS", "NEW YORK METS", "ORGANIZATION"),
        ("EUROPEAN CHARTER OF HUMAN RIGHTS", "EUROPEAN COURT OF HUMAN RIGHTS", "WORK"),
        ("AIR TANZANIA LIMITED", "AIR TANZANIA CORPORATION", "ORGANIZATION"),
        ("STRING THEORY", "STRING THEORIST", "CONCEPT"),
        ("ETHNIC NATIONALISM", "ETHNIC NATIONALITY", "CONCEPT"),
        ("NATURAL SYSTEM", "NEURAL SYSTEM", "CONCEPT"),
        ("AVENGERS", "AVENGER", "WORK"),
        ("입법예고", "재입법예고", "CONCEPT"),
        ("김태완", "김태원", "PERSON"),
        ("행정안전부장관", "행정안전부", "PERSON"),
        ("МИХАЙ", "МИХАИ", "PERSON"),
    ],
)
def test_names_of_different_things_stay_apart(a: str, b: str, type_: str):
    assert merging_rules(entity_key(a), entity_key(b), type_) == set()


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"spelling", "spacing"}))
def test_conflicting_types_prevent_every_rule_except_spellings(rule: str):
    assert not may_merge("ACME", "ORGANIZATION", "ACME INC", "PERSON", rule)
    assert may_merge("ACME", "CONCEPT", "ACMES", "ORGANIZATION", "plural")


@pytest.mark.parametrize("rule", RULES)
def test_types_of_a_closed_schema_prevent_every_rule_except_spelling(rule: str):
    types = frozenset({"ORGAN", "DISEASE"})
    assert not may_merge("LIVERS", "ORGAN", "LIVER", "DISEASE", rule, types)
    assert may_merge("THE LIVER", "ORGAN", "LIVER", "DISEASE", rule, types)
    assert may_merge("LIVERS", "ORGAN", "LIVER", "", "plural", types)


def test_types_do_not_count_for_spellings_because_equal_names_are_merged_anyway():
    assert "spelling" in merging_rules("PALO-ALTO", "PALO ALTO", "ORGANIZATION", "LOCATION")
    assert "spacing" in merging_rules("CHASE JARVIS", "CHASEJARVIS", "PERSON", "ORGANIZATION")


def test_well_known_states_are_places_or_bodies():
    assert "abbreviation" in merging_rules("U.S.", "UNITED STATES", "ORGANIZATION", "LOCATION")


def test_long_names_have_no_keys():
    assert [*rule_keys("A" * (MAX_NAME + 1), "")] == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["NADELLA", "SATYA NADELLA", "DR SATYA NADELLA"], "SATYA NADELLA"),
        (["ELI LILLY AND COMPANY", "ELI LILLY"], "ELI LILLY"),
        (["SEC", "SECURITIES AND EXCHANGE COMMISSION"], "SECURITIES AND EXCHANGE COMMISSION"),
        (["US", "UNITED STATES OF AMERICA", "UNITED STATES"], "UNITED STATES"),
        (["ANN B. LEE", "ANN BEATRICE LEE"], "ANN BEATRICE LEE"),
        (["정의화의원", "정의화"], "정의화"),
    ],
)
def test_the_full_name_without_title_and_legal_form_is_preferred(names: list[str], expected: str):
    assert preferred([(name, "", 1) for name in names]) == expected
    assert preferred([(name, "", 1) for name in reversed(names)]) == expected


def test_the_more_frequent_spelling_is_preferred():
    assert preferred([("OPEN AI", "", 2), ("OPENAI", "", 9)]) == "OPENAI"


# Any text


@settings(max_examples=150, deadline=None)
@given(texts().map(entity_key), texts().map(entity_key), st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_guards_are_symmetric_and_keys_are_short(a, b, type_a, type_b):
    for rule in set(RULES) - {"short_name"}:
        assert may_merge(a, type_a, b, type_b, rule) == may_merge(b, type_b, a, type_a, rule)
    for rule, key in rule_keys(a, type_a):
        assert rule in RULES
        assert 0 < len(key) <= 20 * MAX_NAME
    assert preferred([(a, type_a, 1), (b, type_b, 1)]) == preferred([(b, type_b, 1), (a, type_a, 1)])
