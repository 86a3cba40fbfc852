"""Words for the corpus of `corpus.py`."""

from __future__ import annotations


def _listed(text: str) -> list[str]:
    return [" ".join(item.split()) for item in text.split("|")]


FIRST = _listed(
    """
    Alice | Adrian | Agnes | Albert | Amelia | Andrew | Angela | Arthur | Astrid | Barbara | Beatrice |
    Bernard | Brenda | Brian | Bridget | Carla | Cecilia | Clara | Colin | Daniel | Deborah | Dennis | Diana
    | Douglas | Edith | Edward | Eleanor | Emma | Eric | Fiona | Frances | Gareth | Gerald | Gloria | Graham
    | Hannah | Harold | Helen | Henry | Hugh | Irene | Isabel | Jacob | Janet | Judith | Karen | Keith |
    Laura | Leonard | Louise | Margaret | Martin | Maurice | Monica | Nancy | Nicholas | Oliver | Oscar |
    Pamela | Patricia | Philip | Rachel | Raymond | Rebecca | Robert | Rosemary | Samuel | Sandra | Sheila |
    Simon | Stella | Stephen | Susan | Teresa | Thomas | Valerie | Veronica | Vincent | Walter | Wendy
    """
)
ORGANIZATIONS = _listed(
    """
    Institute | Foundation | University | Laboratories | Holdings | Partners | Commission | Bank
    """
)
PLACES = _listed("Valley | River | Bay | Island | Harbour | Bridge | Forest | Street")
ONSETS = _listed(
    "b | d | f | g | h | k | l | m | n | p | r | s | t | v | w | br | dr | gr | kr | pr | tr | st"
)
VOWELS = _listed("a | e | i | o | u | ei")
CODAS = _listed("k | l | m | n | r | s | t | v | ld | nd | rk | rn | sk | st | lm | x")
VERBS = _listed(
    """
    advised | worked with | wrote to | argued with | visited | supported | met | praised | relied on |
    disagreed with | negotiated with | defended | invited | thanked | questioned | warned | called on |
    helped | answered
    """
)
WHEN = _listed(
    """
    in the spring | after the vote | before the winter | for eleven years | without much notice | that
    autumn | on a Monday | as the papers said | at the last moment | when the money ran out | during the
    repairs | twice | against all advice | because nobody else would | at the end of the decade
    """
)
ABOUT = _listed(
    """
    about the lease | over the accounts | about the new road | over a debt | about the survey | on the
    budget | about the old mill | over the contract | about the flood | on the question of wages | about a
    loan | over the boundary | about the library | on the choice of a site
    """
)
NOUNS = _listed(
    """
    letter | road | window | field | winter | table | house | answer | morning | story | garden | wall |
    question | ship | kitchen | river | paper | train | evening | door | summer | price | bridge | market |
    teacher | farmer | neighbour | mistake | machine | harvest | picture | song | promise | journey |
    village | night | decision | lesson | building | storm | fence | school | church | book | page | stone |
    boat | ladder | bottle | engine | lamp
    """
)
ADJECTIVES = _listed(
    """
    long | small | quiet | cold | strange | heavy | old | bright | narrow | simple | careful | sudden |
    honest | slow | dry | broken | empty | warm | dark | clean | sharp | early | late | rough
    """
)
DID = _listed(
    """
    changed | followed | stood before | explained | hid | opened | closed | covered | spoiled | crossed |
    reached | delayed | improved | ended | began with | led to | came after | looked like | belonged to |
    kept
    """
)
OPENINGS = _listed(
    """
    Still, the | After that, the | In those days the | Nobody doubted that the | It was said that the | For
    a while the | Every year the | Most people thought that the | By then the | Of course the | Here the |
    There was a time when the
    """
)
TERMS = _listed(
    """
    interest rate | water supply | housing policy | trade union | grain price | tax reform | railway
    timetable | public health | tidal energy | school board | labour market | land survey | fishing quota |
    credit union | weather forecast | insurance claim
    """
)
