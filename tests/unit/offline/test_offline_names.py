"""Names, from sentences to resolved mentions."""

import pytest

from graphrag_ray.offline.chunk_names import definitions, find_names
from graphrag_ray.offline.lexicon import LEXICON
from graphrag_ray.offline.mentions import c_values, find_terms, singular
from graphrag_ray.offline.sentences import read_script, split_sentences


def names(text):
    return set(find_names(text, read_script(text)))


def test_capital_in_mid_sentence_is_a_name():
    assert names("We met Orla Quist in Denholm last week.") == {"ORLA QUIST", "DENHOLM"}


def test_ordinary_word_at_the_start_of_a_sentence_is_not_a_name():
    assert names("Bread was scarce. Carpenters left the town. Suddenly it rained.") == set()


def test_ordinary_word_is_a_name_if_it_is_one_elsewhere_in_the_chunk():
    text = "They sailed with Patience and without her. Patience was built of oak; we loved our Patience."
    assert "PATIENCE" in names(text)


def test_word_also_in_lower_case_is_not_a_name():
    assert "HARBOUR" not in names("They asked the Harbour for money. The harbour had none, said the Harbour.")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("She studied at the University of Ostrey for a year.", "UNIVERSITY OF OSTREY"),
        ("He wrote to the Institute for Marine Studies about it.", "INSTITUTE FOR MARINE STUDIES"),
        ("We heard Nadia el Amrani speak.", "NADIA EL AMRANI"),
        ("It is called Moore's Law by everyone.", "MOORE'S LAW"),
        ("They sold it to the Fishermen’s Co-operative at once.", "FISHERMEN'S CO-OPERATIVE"),
        ("In the end Number Three Slip was sold.", "NUMBER THREE SLIP"),
        ("I own an iPhone and nothing else.", "IPHONE"),
        ("They built it for the Xbox 360, which was new.", "XBOX 360"),
        ("Dr. J. K. Marlowe came late.", "J. K. MARLOWE"),
        ("We heard Berta of Ostrey sing for Louis XV of Ostrey.", "LOUIS XV OF OSTREY"),
        ("He wrote of William the Silent.", "WILLIAM THE SILENT"),
        ("They have a star on the Denholm Walk of Fame.", "DENHOLM WALK OF FAME"),
        ("It was made by Metro- Goldwyn- Mayer in one year.", "METRO-GOLDWYN-MAYER"),
        ("We met Kim Ki-duk there.", "KIM KI-DUK"),
        ("He was the son of Anne Marie d'Orlan and left.", "ANNE MARIE D'ORLAN"),
        ('He wrote the song "Avant de dire adieu" then.', "AVANT DE DIRE ADIEU"),
        ('He was in "Karro" (1989) and "Dead Again" (1991), too.', "KARRO"),
        ("It went well in the US and in Denholm.", "US"),
    ],
)
def test_names_keep_their_small_words_and_numbers(text, wanted):
    assert wanted in names(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Councillors Ada Brigg and Tom Sayle voted.", {"ADA BRIGG", "TOM SAYLE"}),
        ("We asked Allen Institute Director Oren Veld about it.", {"ALLEN INSTITUTE", "OREN VELD"}),
        ("I spoke with Chief Technology Officer Ruth Amsel.", {"RUTH AMSEL"}),
        ("On Monday Kestrel Marine paid in May 2014.", {"KESTREL MARINE"}),
        ("This Intel-based machine has two GPUs.", {"INTEL", "GPU"}),
        ("Thank Bill Hartnell for that.", {"BILL HARTNELL"}),
        ("They met in Denholm.Quistberg was not there, in Quistberg.", {"DENHOLM", "QUISTBERG"}),
    ],
)
def test_roles_days_and_openers_are_cut_off(text, wanted):
    assert names(text) == wanted


@pytest.mark.parametrize("clitic", ["n't", "''s", "'s", "`` ''", "'", "N'T", "Did n't", "’s ’s"])
def test_separate_clitics_in_tokenised_text_are_not_words(clitic):
    assert names(f"{clitic} We {clitic} met Orla Quist {clitic} . {clitic}") == {"ORLA QUIST"}


def test_possessive_belongs_to_the_word_before_it():
    assert names("They praised Moore 's Law and Denholm 's Orla Quist.") >= {"MOORE 'S LAW", "ORLA QUIST"}


def test_quoted_title_keeps_its_parenthesis():
    assert names('He sang "Stay Away (You Lied)" and left.') == {"STAY AWAY (YOU LIED)"}


def test_adjacent_names_are_split_if_each_occurs_alone():
    text = "At Denholm Orla Quist spoke first. People in Denholm like Orla Quist."
    assert names(text) == {"DENHOLM", "ORLA QUIST"}


def test_stage_directions_addresses_and_numbers_are_not_names():
    text = (
        "ANN LEE: Well. (Laughter.) [MUSIC] It is so. (Crosstalk)\n\n"
        "BO DAHL: Write to Talk@Example.com or see https://Example.com/AbCd for Episode 12."
    )
    assert names(text) == {"ANN LEE", "BO DAHL"}


@pytest.mark.parametrize(
    "text",
    [
        "We sell the Karro Series X|S. Xbotron sales rose in Denholm.",
        "We sell the Karro Series S. Xbotron sales rose in Denholm.",
        "We went with Plan B. Xbotron sales rose in Denholm.",
    ],
)
def test_letter_after_a_noun_is_not_an_initial(text):
    assert not {n for n in names(text) if n.startswith(("S. ", "B. ")) or "XBOTRON" in n} - {"XBOTRON"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("One Sunday Afternoon\nOne Sunday Afternoon is a film by Orla Quist.", "ONE SUNDAY AFTERNOON"),
        ("In the Room\nIn the Room may refer to many things.", "IN THE ROOM"),
        ("Dream (2008 film)\nDream is a film by Orla Quist.", "DREAM"),
        ("Les amis de ma soeur\nLes amis de ma soeur is a film.", "LES AMIS DE MA SOEUR"),
    ],
)
def test_heading_repeated_by_its_text_is_the_subject(text, name):
    assert name in names(text)


def test_acronym_before_a_title_is_not_a_speaker():
    text = "CSI: Denholm\nCSI: Denholm is a series."
    assert not any(n.speaker for n in find_names(text, read_script(text)).values())


def test_person_with_and_without_middle_name_is_merged():
    assert names("Diana Eve Warrick sang. Diana Warrick left. They heard Warrick.") == {"DIANA WARRICK"}


def test_place_is_not_a_short_name_of_a_person():
    assert "KARRESH" in names("He was president of Kawak Karresh. He was born in Karresh.")


def test_short_names_join_the_only_full_name_that_fits():
    text = "Orla Quist opened the meeting. Ms Quist said that Orla would stay. Quist laughed."
    found = find_names(text, read_script(text))
    assert list(found) == ["ORLA QUIST"]
    assert len(found["ORLA QUIST"].mentions) == 4


def test_ambiguous_surname_is_dropped():
    text = "Orla Quist met Tobias Quist. Then Quist left."
    assert names(text) == {"ORLA QUIST", "TOBIAS QUIST"}


def test_capitalised_common_noun_resolves_to_the_only_matching_body():
    text = "The Denholm Harbour Authority met. Later the Authority voted, and the Authority lost."
    assert names(text) == {"DENHOLM HARBOUR AUTHORITY"}


def test_name_cut_by_the_edge_of_the_chunk_is_ignored():
    assert names("and that was all.\n\nKEVIN GRAY: Yes, I saw Orla Qui") == {"KEVIN GRAY"}


def test_kind_of_person_is_not_a_name():
    assert names("He wants to be a Youtubist, or a Tiktokist.") == set()


def test_speakers_are_persons_and_other_labels_are_not():
    text = "LISA MARR: I agree.\n\nKURT OHM: So do I.\n\nClerk: noted.\nPresent: fifteen members."
    found = find_names(text, read_script(text))
    assert set(found) == {"LISA MARR", "KURT OHM"}
    assert all(n.speaker for n in found.values())


@pytest.mark.parametrize(
    ("text", "short", "long"),
    [
        ("The Friends of Hask Marsh (FHM) wrote.", "FHM", "Friends of Hask Marsh"),
        (
            "the Tolverton and Varnmouth Railway Society (TVRS), too",
            "TVRS",
            "Tolverton and Varnmouth Railway Society",
        ),
    ],
)
def test_abbreviations_are_found_with_their_long_forms(text, short, long):
    (found,) = definitions(text, 0, len(text))
    assert (found[0], text[found[1] : found[2]]) == (short, long)


@pytest.mark.parametrize("text", ["It rained (ABC) here.", "the old mill (see below)", "a thing (1)"])
def test_other_parentheses_define_nothing(text):
    assert definitions(text, 0, len(text)) == []


def test_sentences_do_not_end_at_honorifics_initials_or_abbreviations():
    text = 'Dr. Quist met J. Marr of Ohm Inc. in the U.S. last May. It rained! "Did it?" she asked.'
    assert split_sentences(text) == [
        "Dr. Quist met J. Marr of Ohm Inc. in the U.S. last May.",
        "It rained!",
        '"Did it?" she asked.',
    ]
    dated = "Abdul Aziz (d. 1803) ruled. See p. 7 of series b. It tells more."
    assert split_sentences(dated) == [
        "Abdul Aziz (d. 1803) ruled.",
        "See p. 7 of series b.",
        "It tells more.",
    ]


def test_hard_wrapped_lines_are_one_sentence_and_headings_their_own():
    text = "A Day in Denholm\n\nThe harbour was full of ships that day, and the\npeople had come to see them."
    script = read_script(text)
    assert [text[s.start : s.end].count("\n") for s in script.sentences] == [0, 1]


def test_turns_last_until_the_next_label():
    text = "ANN LEE: One. Two.\n\nThree.\n\nBO DAHL: Four."
    script = read_script(text)
    assert [s.turn for s in script.sentences] == [0, 0, 0, 1]
    assert [t.speaker for t in script.turns] == ["ANN LEE", "BO DAHL"]


def test_terms_are_recurring_noun_phrases_in_the_singular():
    text = "We train neural networks. A neural network learns. Good things take whole years."
    (term, *others) = find_terms(text, read_script(text))
    assert (term[0], len(term[1]), others) == ("neural network", 2, [])


def test_term_inside_a_longer_one_only_has_no_c_value():
    values = c_values({("deep", "neural", "network"): 2, ("neural", "network"): 2, ("deep", "sea"): 1})
    assert values["neural", "network"] == 0
    assert values["deep", "neural", "network"] > values["deep", "sea"] > 0


def test_nested_term_counts_its_separate_occurrences():
    values = c_values({("natural", "language", "model"): 1, ("language", "model"): 3})
    assert values["language", "model"] == 2  # log2(2) · (3 − 1)


@pytest.mark.parametrize(
    ("plural", "one"),
    [
        ("networks", "network"),
        ("theories", "theory"),
        ("boxes", "box"),
        ("physics", "physics"),
        ("bus", "bus"),
    ],
)
def test_plurals_map_to_their_singular(plural, one):
    assert singular(plural) == one


@pytest.mark.parametrize(
    "word", ["walks", "planned", "carrying", "reprogramming", "fearlessness", "self-driving"]
)
def test_inflected_and_derived_words_are_ordinary(word):
    assert LEXICON.is_ordinary(word)


@pytest.mark.parametrize("word", ["parker", "quist", "johnston", "microsoft", "jorunn"])
def test_names_are_not_ordinary(word):
    assert not LEXICON.is_ordinary(word)
