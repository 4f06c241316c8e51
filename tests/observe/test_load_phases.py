from headway.observe.load_phases import describe_load


def test_a_load_is_told_with_its_phases() -> None:
    assert describe_load([("read", 0.26), ("build", 1.5)]) == "loaded in 1.8 s: read 0.3 s, build 1.5 s"
    assert describe_load([]) == "loaded in 0.0 s"
