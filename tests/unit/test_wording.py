from graphrag_ray.wording import plural


def test_one_thing_is_singular_and_every_other_number_plural():
    assert [plural(n, "file") for n in (0, 1, 2, 2000)] == ["0 files", "1 file", "2 files", "2,000 files"]
    assert (plural(1, "retry", "retries"), plural(3, "retry", "retries")) == ("1 retry", "3 retries")
