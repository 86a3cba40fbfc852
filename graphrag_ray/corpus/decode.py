"""Decode files: detect the encoding and reject binary data."""

from __future__ import annotations

import codecs
import unicodedata
from dataclasses import dataclass

import numpy as np

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    # UTF-32 comes before UTF-16, because the UTF-16 marks are prefixes of its marks.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# Common encodings of texts without a byte order mark. With all of its encodings, charset-normalizer mistakes
# French in cp1252 for Baltic, so fewer candidates give better results.
_CANDIDATES = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "iso8859_2", "iso8859_5"),
    *("koi8_r", "mac_roman", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
]
_UNDEFINED_IN_CP1252 = b"\x81\x8d\x8f\x90\x9d"
_CHAOS_TOLERANCE = 0.02
_COHERENCE_TOLERANCE = 0.1
_DETECTION_BYTES = 1 << 18
_PLAUSIBILITY_CHARACTERS = 1 << 16
_MAX_ODD_SHARE = 0.02
_MAX_LOST_SHARE = 0.001
_DAMAGE_TOLERANCE = 4
_COMMON_CONTROLS = frozenset("\t\n\v\f\r\x1b\x85")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded text. If `damaged`, some bytes were replaced by U+FFFD."""

    text: str
    codec: str
    damaged: bool = False

    @property
    def encoding(self) -> str:
        """The codec as displayed to users."""
        return f"{self.codec} (damaged)" if self.damaged else self.codec


@dataclass(frozen=True, slots=True)
class NotText:
    reason: str


def decode(data: bytes, declared: str | None = None) -> Decoded | NotText:
    """Decode a whole file, leaving line endings unchanged.

    Tries in this order: a byte order mark; strict UTF-8; the declared encoding (HTML); UTF-8 with a few
    damaged bytes; detection by charset-normalizer, with a preference for Western (cp1252) if it is about as
    good as the best. Zero bytes, or more than 2% of control or unassigned characters, indicate binary data.
    """
    codec = codec_of_bom(data)
    if codec is not None and codec != "utf-8":
        bom_length = next(len(bom) for bom, name in _BOMS if name == codec)
        try:
            decoded = Decoded(data[bom_length:].decode(codec), codec)
        except UnicodeDecodeError:
            return NotText(f"starts with the byte order mark of {codec} but is not {codec}")
        if not _plausible(decoded.text):
            return NotText(f"starts with the byte order mark of {codec} but is binary data, not text")
        return decoded
    if codec == "utf-8":
        data = data[len(codecs.BOM_UTF8) :]
    if fault := zero_byte_fault(data):
        return fault
    try:
        decoded = Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError as e:
        return (
            _decode_declared(data, declared)
            or _decode_damaged_utf8(data)
            or _decode_detected(data, e.start)
            or _unknown(data, e.start)
        )
    if not _plausible(decoded.text, ("Cc",)):
        return NotText("binary data (too many control characters), not text")
    return decoded


def codec_of_bom(data: bytes) -> str | None:
    """Return the codec of the byte order mark, or None if there is no mark."""
    return next((codec for bom, codec in _BOMS if data.startswith(bom)), None)


def codec_of_head(head: bytes) -> str | NotText:
    """Return the codec of a file from its first bytes, as TextIOWrapper needs it.

    The codec ("utf-8-sig", "utf-16", "utf-32") removes the byte order mark. "utf-8" may only mean that the
    beginning is ASCII, so later bytes may need another codec.
    """
    codec = codec_of_bom(head)
    if codec is not None:
        return "utf-8-sig" if codec == "utf-8" else codec.rsplit("-", 1)[0]
    if fault := zero_byte_fault(head):
        return fault
    try:
        # The head may end inside a character.
        codecs.getincrementaldecoder("utf-8")().decode(head, final=False)
    except UnicodeDecodeError as e:
        if _decode_damaged_utf8(head):
            return "utf-8"
        candidates = _candidates(head, e.start, complete=False)
        plausible = (name for name in candidates if _plausible(head.decode(name, "replace")))
        return next(plausible, None) or _unknown(head, e.start)
    return "utf-8"


def zero_byte_fault(data: bytes) -> NotText | None:
    """Return a fault if the data contains a zero byte, which indicates binary data."""
    position = data.find(0)
    return NotText(f"binary data (a zero byte at position {position}), not text") if position >= 0 else None


def _decode_declared(data: bytes, codec: str | None) -> Decoded | None:
    if codec is None:
        return None
    # Browsers read these as cp1252, so authors mean cp1252.
    codec = "cp1252" if codec.lower() in ("iso-8859-1", "latin1", "us-ascii", "ascii") else codec
    try:
        decoded = Decoded(data.decode(codec), codecs.lookup(codec).name)
    except (LookupError, ValueError):
        return None
    return decoded if _plausible(decoded.text) else None


def _decode_damaged_utf8(data: bytes) -> Decoded | None:
    """Decode damaged UTF-8. Text in other encodings has almost no valid multi-byte UTF-8 sequences."""
    text = data.decode("utf-8", "replace")
    n_replaced = text.count("\ufffd")
    ascii_bytes = int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) < 128))
    n_valid = len(text) - ascii_bytes - n_replaced
    if n_valid < _DAMAGE_TOLERANCE * n_replaced or not _plausible(text):
        return None
    return Decoded(text, "utf-8", damaged=True)


def _decode_detected(data: bytes, first_invalid: int) -> Decoded | None:
    for codec in _candidates(data, first_invalid):
        text = data.decode(codec, "replace")
        # Do not reject a codec because it leaves a few bytes of the file undefined.
        n_replaced = text.count("\ufffd")
        if n_replaced <= _MAX_LOST_SHARE * len(text) and _plausible(text):
            return Decoded(text, codec, damaged=n_replaced > 0)
    return None


def _candidates(data: bytes, first_invalid: int, complete: bool = True) -> list[str]:
    """Return likely codecs, best first, judged by the bytes around the first one that is not UTF-8.

    If not `complete`, the data may end inside a character.
    """
    from charset_normalizer import from_bytes

    start = max(0, first_invalid - 4096)
    sample = data[start : start + _DETECTION_BYTES]
    may_be_cut = not complete or start + len(sample) < len(data)
    # A character has at most four bytes.
    attempts = [sample[: len(sample) - missing] for missing in range(4 if may_be_cut else 1)]
    attempts.append(sample.translate(None, _UNDEFINED_IN_CP1252))
    results = (list(from_bytes(attempt, cp_isolation=_CANDIDATES)) for attempt in attempts)
    matches = next(filter(None, results), None)
    if not matches:
        return []
    best = matches[0]
    preferred = [
        "cp1252"
        for m in matches
        if "cp1252" in m.could_be_from_charset
        and m.chaos <= best.chaos + _CHAOS_TOLERANCE
        and m.coherence >= best.coherence - _COHERENCE_TOLERANCE
    ]
    return preferred[:1] + [m.encoding for m in matches]


def _unknown(data: bytes, first_invalid: int) -> NotText:
    return NotText(
        f"neither UTF-8 (byte 0x{data[first_invalid]:02x} at position {first_invalid}) nor any other known "
        "encoding: either binary data, or text that must be converted to UTF-8"
    )


def _plausible(text: str, odd: tuple[str, ...] = ("Cc", "Cn", "Co", "Cs")) -> bool:
    """Return whether almost no characters have one of the Unicode categories `odd`.

    Pass only "Cc" if the text is valid UTF-8, which is strong evidence already: characters newer than
    Python's Unicode tables look unassigned.
    """
    sample = text[:_PLAUSIBILITY_CHARACTERS]
    strange = [c for c in set(sample) if unicodedata.category(c) in odd and c not in _COMMON_CONTROLS]
    return sum(map(sample.count, strange)) <= _MAX_ODD_SHARE * len(sample)
