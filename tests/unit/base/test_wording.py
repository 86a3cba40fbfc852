from graphrag_ray.base.wording import format_duration, plural


def test_one_thing_is_singular_and_every_other_number_plural():
    assert [plural(n, "file") for n in (0, 1, 2, 2000)] == ["0 files", "1 file", "2 files", "2,000 files"]
    assert (plural(1, "retry", "retries"), plural(3, "retry", "retries")) == ("1 retry", "3 retries")


def test_durations_are_rounded():
    waits = {5: "5 s", 59: "59 s", 90: "2 min", 3600: "1 h", 86_400: "24 h", 172_800: "2 days"}
    assert {s: format_duration(s) for s in waits} == waits
