from serving.api.answered import Answer, Answered


def test_the_newest_are_kept_and_the_first_of_a_name_stays() -> None:
    answered = Answered(most=2)
    answered.note("a", Answer("t", "m", "a"))
    answered.note("b", Answer("t", "m", "b"))
    answered.note("b", Answer("t", "other", "b"))
    answered.note("c", Answer("t", "m", "c"))
    assert answered.get("a") is None
    found = answered.get("b")
    assert found is not None
    assert found.model == "m"
    assert answered.get("c") is not None
