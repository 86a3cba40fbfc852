"""Detecting encodings and rejecting binary data."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.corpus.decode import Decoded, NotText, codec_of_head, decode

TEXTS = {
    "de": "Der Bürgermeister von Müllheim erklärte, daß die Straße über den Fluß geöffnet würde.",
    "fr": "L’été dernier, la mairie a décidé de rénover le théâtre où les élèves répétaient. Ça coûte 30 €.",
    "es": "El alcalde anunció que el año próximo la reparación del puente costará más. ¿Quién pagará?",
    "sv": "Borgmästaren meddelade att bron öppnas nästa månad, trots invånarnas protester på Ångbåtsbryggan.",
    "pl": "Zażółć gęślą jaźń. Burmistrz miasta Łódź ogłosił, że most będzie otwarty w przyszłym miesiącu.",
    "ru": "Мэр города объявил, что мост будет открыт в следующем месяце, несмотря на протесты жителей.",
    "el": "Ο δήμαρχος ανακοίνωσε ότι η γέφυρα θα ανοίξει τον επόμενο μήνα.",
    "tr": "Belediye başkanı köprünün gelecek ay açılacağını duyurdu; şehir halkı karşı çıktı.",
    "ja": "市長は来月に橋が開通すると発表した。住民の反対にもかかわらず、計画は進められている。",
    "zh": "市长宣布大桥将于下个月开通，尽管居民反对，计划仍在进行中。",
    "short": "Zoë’s café",
}


@given(st.text())
def test_utf_8_is_decoded_unchanged(text: str) -> None:
    found = decode(text.encode())
    if isinstance(found, Decoded):
        assert (found.text, found.encoding) == (text.removeprefix("\ufeff"), "utf-8")
    else:
        assert any(c < " " or "\x7f" <= c <= "\x9f" for c in text)


@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_byte_order_mark_determines_the_encoding_and_is_removed(codec: str) -> None:
    text = "Prices: 30 € and 40 €, said Łukasz 😀."
    assert decode(("\ufeff" + text).encode(codec)) == Decoded(text, codec)


@pytest.mark.parametrize(
    ("language", "codec"),
    [
        ("de", "cp1252"),
        ("fr", "cp1252"),
        ("fr", "mac_roman"),
        ("es", "latin-1"),
        ("sv", "latin-1"),
        ("pl", "cp1250"),
        ("pl", "iso8859_2"),
        ("ru", "cp1251"),
        ("ru", "koi8_r"),
        ("el", "cp1253"),
        ("tr", "cp1254"),
        ("ja", "shift_jis"),
        ("ja", "euc_jp"),
        ("zh", "gb18030"),
        ("short", "cp1252"),
    ],
)
def test_older_encodings_are_detected(language: str, codec: str) -> None:
    text = TEXTS[language]
    found = decode(text.encode(codec))
    assert isinstance(found, Decoded)
    assert found.text == text
    assert not found.damaged


def test_first_non_ascii_character_can_come_late() -> None:
    text = "The council met again and agreed the minutes.\n" * 20_000 + TEXTS["fr"]
    found = decode(text.encode("cp1252"))
    assert isinstance(found, Decoded)
    assert found.text == text


def test_declared_encoding_is_used_if_the_bytes_are_not_utf_8() -> None:
    # too short for detection
    assert decode("Жаров".encode("koi8_r"), "koi8-r") == Decoded("Жаров", "koi8-r")
    assert decode("Жаров".encode(), "koi8-r") == Decoded("Жаров", "utf-8")
    assert decode("“Zoë”".encode("cp1252"), "iso-8859-1") == Decoded("“Zoë”", "cp1252")


@pytest.mark.parametrize("declared", ["no-such-encoding", "rot13", "base64", "ascii"])
def test_impossible_declared_encoding_is_ignored(declared: str) -> None:
    found = decode(TEXTS["fr"].encode("cp1252"), declared)
    assert isinstance(found, Decoded)
    assert found.text == TEXTS["fr"]


def test_utf_8_with_a_missing_byte_is_decoded_as_utf_8() -> None:
    text = TEXTS["fr"] * 3
    data = text.encode()
    place = data.index("é".encode()) + 1
    found = decode(data[:place] + data[place + 1 :])
    assert isinstance(found, Decoded)
    assert found.text == text.replace("é", "\ufffd", 1)
    assert found.encoding == "utf-8 (damaged)"


def test_one_undefined_byte_does_not_change_the_detected_encoding() -> None:
    text = (TEXTS["es"] + "\n") * 1000
    found = decode(text.encode("cp1252") + b"\x81")
    assert isinstance(found, Decoded)
    assert found.text == text + "\ufffd"
    assert found.damaged


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
        b"a text with one \0 in it",
        random.Random(1).randbytes(4000),
        bytes(b or 1 for b in random.Random(2).randbytes(4000)),
        bytes(b % 31 + 1 for b in random.Random(3).randbytes(4000)),
        b"\xff\xfe" + random.Random(4).randbytes(4000),
        b"\xff\xfeodd",
        b"\x01",
    ],
    ids=["png", "zero", "random", "no zero", "controls", "mark", "half a character", "one control"],
)
def test_binary_data_is_rejected_with_a_reason(data: bytes) -> None:
    found = decode(data)
    assert isinstance(found, NotText)
    assert "binary" in found.reason or "byte order mark" in found.reason


def test_head_of_a_file_can_end_inside_a_character() -> None:
    head = "für ".encode()[:2]
    assert codec_of_head(head) == "utf-8"
    assert codec_of_head(b"\xef\xbb\xbf" + head) == "utf-8-sig"
    assert codec_of_head("\ufeffa".encode("utf-16-be")) == "utf-16"
    assert codec_of_head((TEXTS["ja"] * 5).encode("shift_jis")[:-1]) == "cp932"
    assert isinstance(codec_of_head(b"PK\x03\x04\0\0"), NotText)


@given(st.binary(max_size=300))
def test_any_bytes_give_text_or_a_reason(data: bytes) -> None:
    found = decode(data)
    assert isinstance(found, Decoded) or found.reason
    if isinstance(found, Decoded):
        found.text.encode("utf-8")  # fails on lone surrogates
