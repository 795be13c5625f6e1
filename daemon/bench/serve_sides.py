"""The sides that serve: our lane, and `transformers` with its `generate`.

- Decode is what several sequences take together, a token each a step: from the moment when all of them have their
  first token to the moment when the first has its last. Prompts are no part of it.
- Both draw greedily and end at a number of tokens, never at a word.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from daemon.bench.measure import answer, load, settings, text_tokens
from daemon.bench.plan import Plan
from daemon.bench.sides import Sample
from engine.batch import Batch, serving_rows
from engine.engine import Engine
from engine.lane import Lane
from engine.orders import Event, TokenServed, TurnEnded, TurnOrder
from engine.sampling import Sampling
from engine.weights import LoadedModel

GREEDY = Sampling(temperature=0)
DECODE, PREFILL = "decode", "prefill"
"""Work: `decode 4` for four sequences together, `prefill` for one prompt."""
MOST_SLOTS = 8


class ServingLane:
    """Our lane: its scheduling, sampling and text are part of what it takes."""

    def __init__(self, plan: Plan) -> None:
        sizes, loaded = plan.sizes, load(plan)
        self._name, self._reply_tokens = loaded.name, sizes.decode_tokens
        self._prompts = _prompts(loaded, sizes.prompt_tokens)
        self._long = text_tokens(loaded, sizes.prefill_tokens)
        context = max(sizes.prefill_tokens, sizes.prompt_tokens + sizes.decode_tokens) + 1
        self._engine = Engine(loaded.model, settings(plan, slots=MOST_SLOTS, context_tokens=context))
        self._lane = Lane(self._engine, loaded.tokenizer.backend_tokenizer)
        self._decode(MOST_SLOTS)
        self._prefill()

    def ready(self) -> Mapping[str, Any]:
        """The model's name and the packing in use."""
        return {"model": self._name, "repack": self._engine.packing.mode}

    def do(self, what: str) -> Mapping[str, Any]:
        """Decode, or serve one long prompt."""
        work, _, slots = what.partition(" ")
        return answer(self._decode(int(slots)) if work == DECODE else self._prefill())

    def _decode(self, slots: int) -> Sample:
        for slot in range(slots):
            prompt = tuple(self._prompts[slot])
            self._lane.submit(TurnOrder(f"turn {slot}", prompt, self._reply_tokens, GREEDY, slot=slot))
        waiting = {f"turn {slot}" for slot in range(slots)}
        while waiting:
            waiting -= {event.turn for event in self._lane.tick() if isinstance(event, TokenServed)}
        started, tokens, events = time.perf_counter(), 0, list[Event]()
        while not any(isinstance(event, TurnEnded) for event in events):
            events = self._lane.tick()
            tokens += sum(isinstance(event, TokenServed) for event in events)
        seconds = time.perf_counter() - started
        while self._lane.serving:
            self._lane.tick()
        return Sample(seconds=seconds, tokens=tokens)

    def _prefill(self) -> Sample:
        self._engine.cut(0, tokens=0)
        started = time.perf_counter()
        self._engine.step(Batch(serving_rows(0, 0, self._long, outputs=1)))
        return Sample(seconds=time.perf_counter() - started, tokens=len(self._long))


class Generate:
    """`transformers`: `generate` on a batch of prompts of one length, and a forward with the last row's logits."""

    def __init__(self, plan: Plan) -> None:
        sizes, loaded = plan.sizes, load(plan)
        self._name, self._model, self._reply_tokens = loaded.name, loaded.model, sizes.decode_tokens
        self._prompts = torch.tensor(_prompts(loaded, sizes.prompt_tokens))
        self._long = torch.tensor([text_tokens(loaded, sizes.prefill_tokens)])
        assert self._model.generation_config is not None, "the model has no generation configuration"
        self._model.generation_config.eos_token_id = None
        self._decode(MOST_SLOTS)
        self._prefill()

    def ready(self) -> Mapping[str, Any]:
        """The model's name."""
        return {"model": self._name}

    def do(self, what: str) -> Mapping[str, Any]:
        """Decode, or serve one long prompt."""
        work, _, sequences = what.partition(" ")
        return answer(self._decode(int(sequences)) if work == DECODE else self._prefill())

    def _decode(self, sequences: int) -> Sample:
        clock, prompts = _StepClock(), self._prompts[:sequences]
        self._model.generate(  # type: ignore[operator]
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=self._reply_tokens,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        seconds = clock.times[-1] - clock.times[0]
        return Sample(seconds=seconds, tokens=sequences * (len(clock.times) - 1))

    def _prefill(self) -> Sample:
        started = time.perf_counter()
        with torch.no_grad():
            self._model(input_ids=self._long, use_cache=True, logits_to_keep=1)
        return Sample(seconds=time.perf_counter() - started, tokens=self._long.shape[1])


class _StepClock(StoppingCriteria):
    """Never stops; notes when each token has come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, _scores: Tensor, **_kwargs: Any) -> Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def _prompts(loaded: LoadedModel, tokens: int) -> list[list[int]]:
    """A prompt for each slot, all of one length, none like another."""
    return [text_tokens(loaded, tokens, skip=slot * tokens) for slot in range(MOST_SLOTS)]
