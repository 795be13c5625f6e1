"""Tiny models with odd sizes, and the slow obvious references the engine is held against."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from engine.batch import Batch, lesson_rows, serving_rows
from engine.engine import Engine
from engine.walk import LessonLearned, Walk

VOCABULARY = 101
BASE: dict[str, object] = {
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
}
SLIDING: dict[str, object] = {
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
EXPERTS: dict[str, object] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, dict[str, object]] = {
    "llama": BASE,
    "qwen3": BASE,
    "gemma3_text": BASE | SLIDING,
    "olmo2": BASE,
    "phi3": BASE,
    "qwen3_moe": BASE | EXPERTS,
    "gpt_oss": BASE | SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": BASE | {"logits_scaling": 3.0},
}

LINEAR: dict[str, object] = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DELTA = LINEAR | {
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 3,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
}
SHORT_CONV: dict[str, object] = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
SHARED_EXPERT = EXPERTS | {"shared_expert_intermediate_size": 24}
STRONG: dict[str, object] = {"initializer_range": 0.1}  # at the default a mamba state hardly shows in the logits
MAMBA: dict[str, object] = STRONG | {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 5,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 7,
}
RECURRENT: dict[str, dict[str, object]] = {
    "qwen3_5_text": BASE | DELTA,
    "qwen3_5_moe_text": BASE | DELTA | SHARED_EXPERT,
    "qwen3_next": BASE | DELTA | SHARED_EXPERT,
    "olmo_hybrid": BASE | DELTA,
    "lfm2": BASE | SHORT_CONV,
    "lfm2_moe": BASE | SHORT_CONV | EXPERTS | {"num_dense_layers": 1},
    "mamba2": {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "vocab_size": VOCABULARY,
        "num_heads": 6,
        "head_dim": 16,
        "state_size": 5,
        "n_groups": 2,
        "chunk_size": 7,
        "pad_token_id": 0,
    },
    "granitemoehybrid": BASE
    | MAMBA
    | LINEAR
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 24},
    "falcon_h1": BASE | MAMBA | {"mamba_d_ssm": 48, "mamba_d_head": 8},
    "nemotron_h": {key: value for key, value in BASE.items() if key != "num_hidden_layers"}
    | STRONG
    | {
        "layers_block_type": ["linear_attention", "full_attention", "moe", "linear_attention", "mlp"],
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "ssm_state_size": 5,
        "n_groups": 2,
        "chunk_size": 7,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 24,
    },
}


def tiny_model(family: str = "llama", *, seed: int = 0) -> PreTrainedModel:
    """A random model of a family, the same each time."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(FAMILIES | RECURRENT)[family]))
    assert isinstance(model, PreTrainedModel)
    model.eval()
    return model


def random_tokens(count: int, *, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, vocabulary, (count,), generator=generator).tolist()
    return tokens


def serve(engine: Engine, slot: int, tokens: Sequence[int]) -> Tensor:
    """Serve tokens after what the slot holds; the last row's logits."""
    held = len(engine.slots[slot].tokens)
    return engine.step(Batch(serving_rows(slot, held, tokens, outputs=1))).logits[-1]


def start_walk(
    engine: Engine,
    slot: int,
    sequence: Sequence[int],
    first_target: int,
    *,
    shadow: str = "shadow",
    weights: Sequence[float] | None = None,
) -> Walk:
    """A walk that learns sequence[first_target:], given what the slot was served before."""
    tokens, targets = sequence[first_target - 1 : -1], sequence[first_target:]
    rows = lesson_rows(slot, first_target - 1, tokens, targets, weights or [1.0] * len(tokens))
    return engine.step(Batch(rows), shadows={slot: shadow}).walks[0]


def finish(walk: Walk) -> LessonLearned:
    while (learned := walk.advance()) is None:
        pass
    return learned


def perturb(engine: Engine, name: str, *, seed: int = 5) -> dict[str, Tensor]:
    """Give an adapter's B matrices values, so that its term is not zero; returns the adapter's tensors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in engine.bank.parameters(name).items():
            if "lora_B" in key:
                parameter.normal_(std=0.05, generator=generator)
    return engine.bank.tensors(name)


def peft_reference(model: PreTrainedModel, tensors: dict[str, Tensor], *, rank: int, alpha: int) -> PeftModel:
    """The same adapter on plain PEFT, over a model of its own."""
    paths = sorted({key.removeprefix("base_model.model.").rpartition(".lora_")[0] for key in tensors})
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=paths, task_type="CAUSAL_LM")
    peft_model = get_peft_model(model, config)
    own = dict(peft_model.named_parameters())
    with torch.no_grad():
        for key, value in tensors.items():
            own[key.replace(".weight", ".default.weight")].copy_(value)
    return peft_model


def reference_gradient(
    peft_model: PeftModel, sequence: Sequence[int], first_target: int, weights: Sequence[float] | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of sequence[first_target:] given the prefix's keys and values, computed without the
    adapter and detached: plain PEFT, one graph, autograd, transformers' own cache.
    """
    prefix, run = sequence[: first_target - 1], sequence[first_target - 1 : -1]
    peft_model.zero_grad()
    cache = DynamicCache(config=peft_model.config)
    if prefix:
        with torch.no_grad(), peft_model.disable_adapter():
            peft_model(input_ids=torch.tensor([prefix]), cache=cache, use_cache=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():  # recurrent states are updated in place
        logits = peft_model(input_ids=torch.tensor([run]), cache=cache, use_cache=True).logits[0]
        losses = F.cross_entropy(logits, torch.tensor(sequence[first_target:]), reduction="none")
        loss = (losses * torch.tensor(weights or [1.0] * len(run))).sum() / len(run)
        loss.backward()
    named = peft_model.named_parameters()
    return loss.item(), {
        name.replace(".default.weight", ".weight"): parameter.grad.clone()
        for name, parameter in named
        if parameter.grad is not None
    }


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[key].flatten().double() for key in sorted(tensors)])
