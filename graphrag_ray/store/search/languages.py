"""In which language texts are written, as far as that decides how their words are stemmed.

Told by function words, which no text of a language does without (Ingle 1976, "A Language Identification
Table"; Grefenstette 1995, "Comparing Two Language Identification Schemes"). The lists were written down from
knowledge of the languages; a word that two of them share counts for both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

WORDS = {
    "arabic": "في من على إلى أن هذا التي الذي كان مع هذه قد لم ما بعد عن كل بين وقد ذلك",
    "danish": "og i at det er en til på som med af for den ikke der var et har de fra kan også blev være",
    "dutch": "de het een en van in is dat op te zijn met voor niet aan er ook als bij maar om door deze werd",
    "english": "the of and to in is that for it was as with be by on not he his but at are this have from or",
    "finnish": "ja on ei että se oli mutta myös hän kun ovat joka tai kuin sen niin mukaan ole sekä olla",
    "french": "le la les de des et en un une du que est dans pour qui par sur pas au plus ce il se avec sont",
    "german": "der die und das den von zu mit ist des nicht ein eine im dem auf für sich als auch es an",
    "greek": "και το της του η ο να την τον στην με για από που είναι τα οι των στο θα δεν ως μια",
    "hindi": "के में है की और से का को पर ने यह भी एक हैं कि था इस लिए नहीं किया",
    "hungarian": "a az és hogy nem is egy ez volt meg de csak mint már vagy ki azt lehet minden amely",
    "italian": "il di che la e in un per una è del non con i da si le dei gli al come alla sono della più",
    "norwegian": "og i det er på en som til av for at med den ikke var et har de fra om han kan ble også",
    "indonesian": "yang dan di dari dalam untuk dengan pada ini adalah itu tidak oleh sebagai juga akan ke",
    "polish": "w i na z się nie do że jest to o jak po ale od za co są dla przez był jego przy oraz tym",
    "portuguese": "de a o que e do da em um para com não uma os no se na por mais as dos foi ao ele das à",
    "romanian": "și de în la a cu pe o care din nu că este un mai pentru fost au ce lui sau după prin sunt",
    "russian": "и в не на что с он как по это но из у к за от его для был о было она так же все",
    "spanish": "de la que el en y a los del se las por un para con no una su al es lo como más pero fue",
    "swedish": "och i att det som en på är av för med den till inte har de om ett han var jag från eller",
    "turkish": "ve bir bu da de için ile olarak daha çok gibi olan en ama kadar sonra ne var olduğu değil",
}
"""By their name at Snowball: some twenty of the most frequent words of a language."""

LEAST_SHARE = 0.6
"""Of the texts that have a language; below it, no language is that of all."""
_LEAST_FOUND = 3
_LONGEST_LOOK = 4_000
"""Characters of a text that are looked at."""

_WORD = re.compile(r"[^\W\d_]++(?:[\u0300-\u036f\u0900-\u0963]++[^\W\d_]*+)*+")
_LANGUAGES: dict[str, list[str]] = {}
for _language, _words in WORDS.items():
    for _word in _words.split():
        _LANGUAGES.setdefault(_word, []).append(_language)


def language_of(text: str) -> str:
    """The language of a text; "" where its words do not tell."""
    found: Counter[str] = Counter()
    for word in _WORD.findall(text[:_LONGEST_LOOK].casefold()):
        found.update(_LANGUAGES.get(word, ()))
    first, second = [*found.most_common(2), ("", 0), ("", 0)][:2]
    return first[0] if first[1] >= _LEAST_FOUND and first[1] > second[1] else ""


def common_language(texts: Iterable[str]) -> str:
    """The language that most texts are written in; "" where they have several, or none that is known."""
    found = Counter(filter(None, map(language_of, texts)))
    language, n = max(found.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return language if n and n >= LEAST_SHARE * found.total() else ""
