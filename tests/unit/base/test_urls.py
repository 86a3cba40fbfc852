"""Removal of secrets from URLs."""

from __future__ import annotations

import pytest
from linear_time import too_slow

from graphrag_ray.base.urls import display_url, redact_urls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:hidden@host/a.txt?sig=hidden", "https://host/a.txt"),
        ("simplecache::http://me:hidden@host/a.txt", "simplecache::http://host/a.txt"),
        ("zip://*.txt::https://me:hidden@host/a.zip", "zip://*.txt::https://host/a.zip"),
        ("http://me:hidden/with#marks@host/a.txt", "http://…"),
        ("http://[me:hidden", "http://…"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://host:8000/@me/a.txt", "http://host:8000/@me/a.txt"),
        ("s3://bucket/a folder/*.txt", "s3://bucket/a folder/*.txt"),
    ],
)
def test_a_displayed_url_has_no_password_and_query(url: str, shown: str):
    assert display_url(url) == shown
    assert redact_urls(f"cannot read {url}: gone", url) == f"cannot read {shown}: gone"


def test_a_password_is_removed_wherever_it_occurs():
    url = "memory://me:top%20secret@docs/a?sig=0badc0de"
    told = "me:top secret@docs/a: no login with top%20secret and sig=0badc0de at http://me@host/b?c=1"
    assert redact_urls(told, url) == "docs/a: no login with  and  at http://host/b"


def test_text_without_urls_is_unchanged():
    told = "std::vector a@b.c? 1 // 2 memory:///x, http://host:1/v1#"
    assert redact_urls(told, "/a/path") == told.removesuffix("#")


@pytest.mark.parametrize("unit", ["a", "a.", "::a", "a:", "://", "a://", "@", "::"])
def test_searching_for_urls_takes_linear_time(unit: str):
    assert not too_slow(redact_urls, lambda n: unit * n, 10_000)


def test_a_url_after_a_long_word_is_found():
    assert "hidden" not in redact_urls("x" * 100 + "https://me:hidden@host/a")
