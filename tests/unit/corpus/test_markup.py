"""Extracting text from HTML."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.corpus.markup import ORDINARY_TAGS, declared_charset, is_ordinary, limit_nesting, read_html


def test_blocks_become_paragraphs_and_inline_markup_does_not() -> None:
    page = read_html(
        "<body><h1>The <i>Net</i> Loft</h1><p>Mara\n  Venn<b>ing</b> spoke.</p>After<div>x</div>"
    )
    assert page.text == "The Net Loft\n\nMara Venning spoke.\n\nAfter\n\nx"


def test_lists_tables_and_breaks_become_lines() -> None:
    html = (
        "<p>Before</p><ul><li>one</li><li>two <ul><li>deeper</li></ul></li></ul><p>A<br>B<br><br/>C</p>"
        "<table><tr><th>Name</th><th>Age</th></tr><tr><td> Ulla </td><td>41</td></tr></table>"
    )
    assert read_html(html).text == ("Before\n\none\ntwo\n\ndeeper\n\nA\nB\n\nC\n\nName\tAge\nUlla\t41")


def test_scripts_styles_navigation_and_comments_are_not_text() -> None:
    html = (
        "<head><title>T</title><style>p{color:red}</style></head><body><nav><p>Home</p></nav>"
        "<script>if (a < b) alert('<p>no</p>')</script><!-- hidden --><noscript>Enable</noscript>"
        "<svg><title>Icon</title><text>drawn</text></svg><p>Said.</p><template><p>t</p></template>"
    )
    page = read_html(html)
    assert (page.title, page.text) == ("T", "Said.")


def test_entities_are_decoded_and_whitespace_is_collapsed() -> None:
    page = read_html("<title>A &amp; B</title><p>Fish&nbsp;&amp;&#32;chips &lt;b&gt; &eacute; \n\t z</p>")
    assert (page.title, page.text) == ("A & B", "Fish & chips <b> é z")


def test_preformatted_text_keeps_its_lines() -> None:
    assert read_html("<p>a</p><pre>\n x  y\n  z</pre><p>b</p>").text == "a\n\n x  y\n  z\n\nb"


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title> The\n Gazette </title><h1>No</h1>", "The Gazette"),
        ("<title> </title><h1>Harbour <em>plan</em></h1>", "Harbour plan"),
        ("<svg><title>Icon</title></svg><p>x</p>", None),
    ],
)
def test_title_falls_back_to_the_first_heading(html: str, title: str | None) -> None:
    assert read_html(html).title == title


@pytest.mark.parametrize(
    ("meta", "date"),
    [
        ('<meta property="article:published_time" content="2014-03-02T10:00">', "2014-03-02T10:00"),
        ('<meta name="Date" content=" 2 March\n2014 ">', "2 March 2014"),
        ('<meta itemprop="datePublished" content="2014">', "2014"),
        ('<meta name="date" content="1999"><meta property="article:published_time" content="2000">', "2000"),
        ('<meta name="date" content=""><meta name="DC.date" content="1999">', "1999"),
        ('<meta name="generator" content="2014">', None),
    ],
)
def test_date_comes_from_the_most_reliable_meta_tag(meta: str, date: str | None) -> None:
    assert read_html(f"<head>{meta}</head><p>x</p>").date == date


@pytest.mark.parametrize(
    ("head", "charset"),
    [
        (b'<meta charset="windows-1251">', "windows-1251"),
        (b'<META http-equiv="Content-Type" content="text/html; charset=EUC-JP">', "EUC-JP"),
        (b"<p>charset=utf-16</p>", None),
    ],
)
def test_the_declared_encoding_is_found_before_decoding(head: bytes, charset: str | None) -> None:
    assert declared_charset(b"<html><head>" + head) == charset


def test_deep_nesting_does_not_recurse() -> None:
    assert read_html("<div>" * 5000 + "deep").text == "deep"


@given(
    st.lists(
        st.sampled_from(
            ["<p>", "</p>", "<b>", "</div>", "<td>", "<li>", "<pre>", "<br>", "&amp", "a b ", "< "]
        )
    )
)
def test_broken_markup_is_read(parts: list[str]) -> None:
    text = read_html("".join(parts)).text
    assert text == text.strip() or "<pre>" in parts
    assert text.count("a b") == parts.count("a b ")


@pytest.mark.parametrize(
    "odd", ["<?php echo 1 ?>", "<?mso x?>", "<!x>", "</>", "<![CDATA[x]]>", "<!-- x -->", "<?"]
)
def test_instructions_declarations_and_comments_are_not_text(odd: str) -> None:
    assert read_html(f"{odd}<html>{odd}<body>{odd}<p>Ulla</p>{odd}").text == "Ulla"


PIECES = [
    *(
        "<div>",
        "</div>",
        "<p>",
        "</p>",
        "<b>",
        "</b>",
        "<li>",
        "<ul>",
        "</ul>",
        "<span x='>'>",
        "</span>",
        "<br/>",
    ),
    *(
        "w1",
        "w2 ",
        " w3",
        "a < b",
        "&lt;p>",
        "<!-- w4 -->",
        "<?w5 ?>",
        "<h1>",
        "</h1>",
        "<a href=w6>",
        "</a>",
    ),
    *(
        "<script>w7</script>",
        "<table><tr><td>w8</table>",
        "<svg>w9</svg>",
        "<textarea><b>w10</textarea>",
        "\n",
    ),
]
PLAIN = (
    '<!doctype html><head><title>A <b>&amp;</b></title><meta name="date" content="1999 <b>">'
    "<script>if (a < b) x('<div>')</script><style>p > a {}</style></head><body class='x>y'>"
    "<nav><b>no</b></nav><h1>Net <i>Loft</i></h1><p>a < b<p>2<!-- <div> --><ul><li>one<li>two<ul><li>3</ul>"
    "</ul><textarea><b></textarea><table><tr><td>A<td><font color=red>B</font></table>"
    "<svg><title>t</title><path d=x /><text>no</text></svg><math><mi>x</mi></math><pre>\n a\n  b</pre>"
    "<xmp><p>&amp;</xmp><br/>c<hr><select><option>o</select>d<p>e<?x y?>f"
)


def test_limiting_the_nesting_preserves_the_text_of_a_page() -> None:
    plain, bounded = read_html(PLAIN), read_html(PLAIN + "<p>" * ORDINARY_TAGS)
    assert not is_ordinary(PLAIN + "<p>" * ORDINARY_TAGS)
    assert bounded == plain


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_limiting_the_nesting_loses_no_words(html: str) -> None:
    words = re.findall(r"\bw\d+", read_html(html).text)
    assert re.findall(r"\bw\d+", read_html(limit_nesting(html)).text) == words


def test_text_below_the_maximum_depth_is_read() -> None:
    page = read_html("<div>" * 5_000 + "deep" + "</div>" * 5_000 + "<p>after")
    assert page.text == "deep\n\nafter"
