"""llama-server's `/tokenize`, `/detokenize` and `/apply-template`: what a turn would make of the same."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from store.turns import turn_of
from tests.daemon.conftest import Running, Start
from tests.daemon.tiny_chat import write_tiny_chat

TEXT = "the harbour ü<|im_end|>"
FUNCTION: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}


async def test_tokens_and_back(running: Running) -> None:
    _, cut = await running.post("/tokenize", {"content": TEXT})
    tokenizer = running.service._loaded().tokenizer
    assert cut == {"tokens": tokenizer.encode(TEXT, add_special_tokens=False)}
    assert cut["tokens"][-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert (await running.post("/detokenize", cut))[1] == {"content": TEXT}


async def test_pieces_are_text_or_bytes(running: Running) -> None:
    _, cut = await running.post("/tokenize", {"content": "the ü<|im_end|>", "with_pieces": True})
    assert [token["piece"] for token in cut["tokens"]] == ["the", " ", [0xC3], [0xBC], "<|im_end|>"]
    ids = [token["id"] for token in cut["tokens"]]
    assert (await running.post("/tokenize", {"content": "the ü<|im_end|>"}))[1]["tokens"] == ids


async def test_special_tokens_are_added_if_asked(start: Start, tmp_path: Path) -> None:
    directory = write_tiny_chat(tmp_path / "begins")
    tokenizer = AutoTokenizer.from_pretrained(directory, add_bos_token=True)
    begin = tokenizer.convert_tokens_to_ids("<|im_start|>")
    tokenizer.save_pretrained(directory)
    async with start(model=str(directory)) as running:
        plain = (await running.post("/tokenize", {"content": "the"}))[1]["tokens"]
        special = (await running.post("/tokenize", {"content": "the", "add_special": True}))[1]["tokens"]
        prompts = (["the"], ["the", *plain, "the"], [*plain, "the"])
        answers = [await running.post("/completion", {"prompt": prompt, "n_predict": 1}) for prompt in prompts]
    assert special == [begin, *plain]
    assert [answer["tokens_evaluated"] for _, answer in answers] == [2, 4, 2]


async def test_an_applied_template_is_the_prompt_that_a_turn_has(with_tools: Running) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "tools": [FUNCTION]}
    body |= {"chat_template_kwargs": {"thinking": True}}
    _, applied = await with_tools.post("/apply-template", body)
    assert "weather" in applied["prompt"]
    assert applied["prompt"].endswith("<think>\n")
    turn = (await with_tools.ask("hello", **{k: v for k, v in body.items() if k != "messages"}))["turn"]
    served = (await with_tools.store.read(turn_of, turn)).prompt_tokens
    assert served is not None
    assert tuple((await with_tools.post("/tokenize", {"content": applied["prompt"]}))[1]["tokens"]) == served


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/tokenize", {}, "content: Field required"),
        ("/tokenize", {"content": "\ud800"}, "surrogate"),
        ("/tokenize", {"content": "x", "parse_special": False}, "parse_special"),
        ("/tokenize", {"content": "x", "add_bos": True}, "add_bos: this parameter is not supported"),
        ("/detokenize", {"tokens": [1, 100_000]}, "tokens: there is no token 100000"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": "x"}], "tools": [FUNCTION]}, "tools"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    running: Running, path: str, body: dict[str, Any], says: str
) -> None:
    status, answer = await running.post(path, body)
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (400, 400, "invalid_request_error")
    assert says in answer["error"]["message"]
