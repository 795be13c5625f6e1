"""llama-server's `POST /completion`: its answers to the letter, and what it refuses."""

import re
from typing import Any

import pytest

from daemon.dialects.llama_completion import LlamaCompletion
from daemon.dialects.llama_request import SAMPLERS, LlamaRequest
from daemon.serving.turns import Limits
from engine.sampling import Sampling
from tests.daemon.conftest import AGENT, Running
from tests.daemon.scripted import Says

PATH = "/completion"
ASK: dict[str, Any] = {"prompt": "hello there", "temperature": 0, "seed": 7}
PROMPT_TOKENS = 3
NO_LESSONS: dict[str, Any] = {"lessons": []}
SETTINGS: dict[str, Any] = {
    "n_predict": -1,
    "max_tokens": -1,
    "temperature": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": -1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": 7,
    "stop": [],
    "logit_bias": [],
    "n_probs": 0,
    "grammar": "",
    "json_schema": None,
    "stream": False,
    "samplers": list(SAMPLERS),
    "mirostat": 0,
    "dynatemp_range": 0,
    "dry_multiplier": 0,
    "xtc_probability": 0,
    "top_n_sigma": -1,
    "ignore_eos": False,
    "min_keep": 0,
    "n_keep": 0,
    "n_discard": 0,
    "n_indent": 0,
    "n_cache_reuse": 0,
    "t_max_predict_ms": 0,
    "timings_per_token": False,
    "return_progress": False,
    "post_sampling_probs": False,
}


def timed(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with its times replaced by what they are: positive."""
    for key, value in answer.get("timings", {}).items():
        if not key.endswith("_n"):
            assert value > 0
            answer["timings"][key] = "positive"
    return answer


def account(**changes: Any) -> dict[str, Any]:
    """The whole answer to ASK when it is answered `hello there`."""
    rates = {f"{what}_{unit}": "positive" for what in ("prompt", "predicted") for unit in _UNITS}
    timings = {"cache_n": 0, "prompt_n": PROMPT_TOKENS, "predicted_n": 4} | rates
    return {
        "index": 0,
        "content": "hello there",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "tiny-chat",
        "tokens_predicted": 4,
        "tokens_evaluated": PROMPT_TOKENS,
        "generation_settings": SETTINGS,
        "prompt": "hello there",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "eos",
        "stopping_word": "",
        "tokens_cached": 0,
        "timings": timings,
        "learn": NO_LESSONS,
    } | changes


_UNITS = ("ms", "per_token_ms", "per_second")


def ids(running: Running, text: str) -> list[int]:
    encoded: list[int] = running.service._loaded().tokenizer.encode(text, add_special_tokens=False)
    return encoded


async def test_an_answer(running: Running, says: Says) -> None:
    says("hello there")
    status, answer = await running.post(PATH, ASK)
    assert (status, timed(answer)) == (200, account())


async def test_a_stream(running: Running, says: Says) -> None:
    says("hello there")
    events = [timed(event["data"]) for event in await running.events(PATH, ASK | {"stream": True})]
    hell, o, there = ids(running, "hell"), ids(running, "o"), ids(running, " there")

    def chunk(text: str, tokens: list[int], told: int) -> dict[str, Any]:
        counted = {"tokens_predicted": told, "tokens_evaluated": PROMPT_TOKENS}
        return {"index": 0, "content": text, "tokens": tokens, "stop": False} | counted

    end = running.service._loaded().tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert events == [
        chunk("hell", hell, 1),
        chunk("o", o, 2),
        chunk(" there", there, 3),
        account(content="", tokens=[end], generation_settings=SETTINGS | {"stream": True}),
    ]


async def test_a_stream_that_fails_ends_in_an_error(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the lane's disk burns")

    monkeypatch.setattr("engine.live_turn.LiveTurn.draw", fail)
    (event,) = await running.events(PATH, ASK | {"stream": True})
    assert event["data"]["error"].keys() == {"code", "message", "type"}
    assert "the lane's disk burns" in event["data"]["error"]["message"]


async def test_tokens_and_texts_in_turn_are_one_prompt(running: Running) -> None:
    whole = (await running.post(PATH, ASK | {"prompt": "hello there ü you"}))[1]
    pieces = [*ids(running, "hello"), " there ", *ids(running, "ü"), " you"]
    mixed = (await running.post(PATH, ASK | {"prompt": pieces}))[1]
    alone = (await running.post(PATH, ASK | {"prompt": ids(running, "hello there ü you")}))[1]
    for answer in (mixed, alone):
        assert answer["prompt"] == "hello there ü you"
        assert answer["content"] == whole["content"]
    assert whole["tokens_cached"] == 0
    assert alone["tokens_cached"] == alone["timings"]["cache_n"] == whole["tokens_evaluated"] - 1
    assert alone["timings"]["prompt_n"] == 1


@pytest.mark.parametrize(
    ("options", "stop_type", "stopping_word", "content"),
    [
        ({}, "eos", "", "the harbour\n"),
        ({"stop": ["b", "our"]}, "word", "b", "the har"),
        ({"n_predict": 1}, "limit", "", "the"),
    ],
)
async def test_why_it_stopped(
    running: Running, says: Says, options: dict[str, Any], stop_type: str, stopping_word: str, content: str
) -> None:
    says("the harbour\n")
    answer = (await running.post(PATH, ASK | options))[1]
    assert (answer["stop_type"], answer["stopping_word"], answer["content"]) == (stop_type, stopping_word, content)
    assert answer["has_new_line"] == content.endswith("\n")


async def test_without_a_limit_the_contexts_end_is_the_limit(running: Running) -> None:
    never = {"logit_bias": [[2, False], [1, False]]}
    answer = (await running.post(PATH, ASK | never))[1]
    assert answer["stop_type"] == "limit"
    assert answer["tokens_evaluated"] + answer["tokens_predicted"] == 256


async def test_log_probabilities_are_told_in_both_ways(running: Running, says: Says) -> None:
    says("the ü", "the ü")
    whole = (await running.post(PATH, ASK | {"n_probs": 2, "return_tokens": True}))[1]
    told = whole["completion_probabilities"]
    assert [token["token"] for token in told] == ["the", " ", "\ufffd", "\ufffd"]
    assert [token["bytes"] for token in told] == [[*b"the"], [32], [0xC3], [0xBC]]
    assert [token["id"] for token in told] == whole["tokens"][:-1] == ids(running, "the ü")
    assert all(token["logprob"] < 0 and len(token["top_logprobs"]) == 2 for token in told)
    assert all(
        top.keys() == {"id", "token", "bytes", "logprob"} for token in told for top in token["top_logprobs"]
    )
    *chunks, last = [event["data"] for event in await running.events(PATH, ASK | {"n_probs": 2, "stream": True})]
    assert [token["id"] for chunk in chunks for token in chunk["completion_probabilities"]] == whole["tokens"][:-1]
    assert "completion_probabilities" not in last


async def test_the_slot_that_is_asked_for_is_taken(running: Running) -> None:
    slots = [(await running.post(PATH, ASK | {"id_slot": slot}))[1]["id_slot"] for slot in (1, 0)]
    assert slots == [1, 0]
    status, answer = await running.post(PATH, ASK | {"id_slot": 2})
    assert status == 400
    assert "slots 0 to 1" in answer["error"]["message"]


async def test_a_seed_left_to_the_lane_is_told_and_draws_the_same_again(running: Running) -> None:
    options = {"prompt": "hello", "temperature": 1.5, "n_predict": 30, "seed": -1}
    first = (await running.post(PATH, options))[1]
    seed = first["generation_settings"]["seed"]
    again = (await running.post(PATH, options | {"seed": seed}))[1]
    other = (await running.post(PATH, options))[1]
    assert seed not in {-1, other["generation_settings"]["seed"]}
    assert again["content"] == first["content"]


async def test_a_grammar_and_a_schema_hold(running: Running) -> None:
    free = {"prompt": "hello", "temperature": 1.5, "n_predict": 30}
    kept = (await running.post(PATH, free | {"grammar": 'root ::= "yes" | "no"'}))[1]
    assert kept["content"] in {"yes", "no"}
    number = (await running.post(PATH, free | {"json_schema": {"type": "integer", "maximum": 9, "minimum": 0}}))[1]
    assert re.fullmatch(r"\d", number["content"])


async def test_a_bias_decides_what_is_said(running: Running) -> None:
    (token,) = ids(running, "the")
    for bias in ([[token, 100]], {str(token): 100}):
        answer = (await running.post(PATH, ASK | {"logit_bias": bias, "n_predict": 3}))[1]
        assert answer["content"] == "thethethe"
        assert answer["generation_settings"]["logit_bias"] == [{"token": token, "bias": 100.0}]


async def test_a_turn_is_the_agents_who_asked(running: Running) -> None:
    turn = (await running.post(PATH, ASK | {"metadata": {"agent": AGENT, "context": "room"}}))[0]
    assert turn == 200
    (row,) = (await running.get("/ledger", kind="turn"))["rows"]
    assert (row["agent"], row["context"]) == (AGENT, "room")


def test_every_parameter_of_drawing_reaches_the_lane() -> None:
    drawing: dict[str, Any] = {
        "temperature": 0.3,
        "top_p": 0.4,
        "top_k": 5,
        "min_p": 0.06,
        "typical_p": 0.7,
        "seed": 8,
    }
    drawing |= {"presence_penalty": 0.8, "frequency_penalty": 0.9}
    body = ASK | drawing | {"repeat_penalty": 1.1, "n_probs": 3, "stop": ["x"], "n_predict": 15}
    request = LlamaRequest.model_validate(body | {"id_slot": 1, "logit_bias": [[13, 14], [2, False]]})
    biases = ((13, 14.0), (2, float("-inf")))
    sampling = Sampling(**drawing, repetition_penalty=1.1, logit_bias=biases, logprobs=3)
    asked = LlamaCompletion(None).asked(request)  # type: ignore[arg-type]
    assert asked.limits == Limits(15, ("x",), sampling, slot=1)


def test_what_is_not_said_is_as_llama_server_has_it() -> None:
    sampling = LlamaRequest.model_validate({"prompt": "x", "seed": 1, "top_k": -1, "n_probs": 0}).sampling
    assert sampling == Sampling(temperature=0.8, top_k=0, top_p=0.95, min_p=0.05, seed=1)


@pytest.mark.parametrize(
    ("change", "names", "says"),
    [
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": ["a", "b"]}, "prompt", "one by one"),
        ({"prompt": [[1, 2], [3]]}, "prompt", ""),
        ({"prompt": []}, "prompt", "0 tokens"),
        ({"prompt": [5, 100_000]}, "prompt", "no token 100000"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": []}}, "prompt", ""),
        ({"prompt": "x" * 2000}, "prompt", "--ctx"),
        ({"n_predict": 0}, "n_predict", "at least one"),
        ({"n_predict": -2}, "n_predict", "-1"),
        ({"logit_bias": [[5, True]]}, "logit_bias", ""),
        ({"logit_bias": [["hello", 1]]}, "logit_bias", "integer"),
        ({"n_probs": 101}, "n_probs", "100"),
        ({"grammar": "root ::= missing"}, "grammar", "missing"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema", "one of them"),
        ({"json_schema": {"type": "nothing"}}, "json_schema", "nothing"),
        ({"cache_prompt": False}, "cache_prompt", "True"),
        ({"id_slot": -2}, "id_slot", "-1"),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "repeat_last_n", "give -1"),
        ({"mirostat": 2}, "mirostat", "give 0"),
        ({"typical_p": 0}, "typical_p", "0"),
        ({"dry_multiplier": 0.8}, "dry_multiplier", "give 0"),
        ({"xtc_probability": 0.5}, "xtc_probability", "give 0"),
        ({"dynatemp_range": 0.5}, "dynatemp_range", "give 0"),
        ({"top_n_sigma": 1}, "top_n_sigma", "give -1"),
        ({"ignore_eos": True}, "ignore_eos", "give False"),
        ({"t_max_predict_ms": 100}, "t_max_predict_ms", "give 0"),
        ({"post_sampling_probs": True}, "post_sampling_probs", "give False"),
        ({"samplers": ["top_k"]}, "samplers", "not supported"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora", "not supported"),
        ({"n_cmpl": 2}, "n_cmpl", "not supported"),
        ({"response_fields": ["content"]}, "response_fields", "not supported"),
        ({"learn": {"wait": -1}}, "learn.wait", "0"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    running: Running, change: dict[str, Any], names: str, says: str
) -> None:
    status, answer = await running.post(PATH, ASK | change)
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (400, 400, "invalid_request_error")
    assert answer["error"]["message"].startswith(names)
    assert says in answer["error"]["message"]


async def test_what_is_off_may_be_there(running: Running) -> None:
    off: dict[str, Any] = {
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "xtc_threshold": 0.1,
    }
    off |= {"dry_sequence_breakers": ["\n"], "top_n_sigma": -1.0, "repeat_last_n": 64, "ignore_eos": False}
    assert (await running.post(PATH, ASK | off | {"n_keep": 0, "n_predict": 1, "grammar": None}))[0] == 200
