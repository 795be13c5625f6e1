import pytest
from pydantic import ValidationError

from signals.refusals import Refusal, RefusalCode, RefusalError

DESIGNED = """
unserved_prefix · prefix_evicted · tool_call_reply · reasoning_reply · empty_reply · media_in_prompt ·
repacked_weights · no_backward · policy_off · private_context · untrusted_source · failed_outcome ·
past_context · lesson_too_long · recurrent_state_missing · pending_rollback · turn_unknown · span_not_found ·
quote_ambiguous · template_not_prefix_stable · labels_not_one_run · label_not_output · bad_weight · device_memory ·
host_memory · nonfinite_loss · nonfinite_gradient · superseded · expired · lane_cannot_learn ·
adapter_unknown · cancelled · forgotten
"""


def test_the_codes_are_those_of_the_design_in_its_order() -> None:
    assert [code.value for code in RefusalCode] == [word.strip() for word in DESIGNED.split("·")]


@pytest.mark.parametrize("code", RefusalCode)
def test_every_code_has_one_sentence(code: RefusalCode) -> None:
    assert code.sentence[0].isupper()
    assert code.sentence.endswith(".")
    assert code.sentence.count(". ") == 0


def test_no_two_codes_share_a_sentence() -> None:
    assert len({code.sentence for code in RefusalCode}) == len(RefusalCode)


@pytest.mark.parametrize("code", RefusalCode)
def test_a_stored_code_reads_back_as_its_member(code: RefusalCode) -> None:
    refusal = Refusal(code=code, message="given, allowed, to do", position=3)
    assert RefusalCode(str(code)) is code
    assert Refusal.model_validate_json(refusal.model_dump_json()) == refusal


def test_a_refusal_says_why() -> None:
    with pytest.raises(ValidationError):
        Refusal(code=RefusalCode.EXPIRED, message="")


def test_a_refusal_error_carries_its_refusal() -> None:
    error = RefusalError(RefusalCode.EXPIRED, "waited too long", position=7)
    assert error.refusal == Refusal(code=RefusalCode.EXPIRED, message="waited too long", position=7)
    assert str(error) == "waited too long"
