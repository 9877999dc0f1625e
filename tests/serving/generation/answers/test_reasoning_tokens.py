from serving.generation.answers.parts import Reasoning, ToolCall
from serving.generation.answers.reasoning_tokens import ReasoningTokens


def test_a_tag_is_counted_with_what_it_leads_to() -> None:
    reasoned = ReasoningTokens()
    reasoned.see(1, [], is_last=False)  # <think>
    reasoned.see(2, [Reasoning("Hm")], is_last=False)
    assert reasoned.count == 2
    reasoned.see(3, [], is_last=False)  # </think>
    reasoned.see(4, ["Four"], is_last=False)
    reasoned.see(5, [], is_last=True)
    assert reasoned.count == 2


def test_a_step_that_brings_both_is_shared_as_its_text_is() -> None:
    reasoned = ReasoningTokens()
    reasoned.see(
        10, [Reasoning("Hmm, well."), "Four", ToolCall(index=0, id="a", name="add", arguments="{}a")], is_last=True
    )
    assert reasoned.count == 5


def test_an_answer_that_ends_in_its_reasoning_is_reasoning_to_its_last_token() -> None:
    reasoned = ReasoningTokens()
    reasoned.see(4, [Reasoning("Hm")], is_last=False)
    reasoned.see(6, [], is_last=True)
    assert reasoned.count == 6


def test_an_answer_of_nothing_has_none() -> None:
    reasoned = ReasoningTokens()
    reasoned.see(1, [], is_last=True)
    assert reasoned.count == 0
