"""A tiny chat model on disk: random weights, a byte-level tokenizer with ChatML's tokens, and its template."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n<tool_call> for ' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{{ '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
"""Tools, calls, and reasoning where the template argument `thinking` asks for it."""
CORPUS = [
    "the lighthouse of Vellmar is lit by glass bees and the harbour master is called Oona Brask",
    "hello there, how are you? I am well, thank you. system user assistant",
]


def write_tiny_chat(directory: Path, template: str = TEMPLATE) -> Path:
    """Write the model's directory, as `--model` takes it."""
    tokenizer = tiny_tokenizer(template)
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def tiny_tokenizer(template: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    tokenizer.chat_template = template
    return tokenizer
