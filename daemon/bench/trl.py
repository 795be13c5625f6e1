"""A step of trl's SFTTrainer on one conversation; needs the `bench` extra.

- The conversation is given as token ids with labels, so that trl learns the same tokens as everyone else.
- Everything else is trl's default (bf16 autocast, gradient checkpointing, the fused AdamW), on the CPU and silent.
- The trainer's own set-up before a step and what it does after the last are not measured.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import PrinterCallback, TrainerCallback, TrainerControl
from trl import SFTConfig, SFTTrainer

from daemon.bench.measure import Meter, start_meter
from daemon.bench.sides import Sample
from engine.weights import LoadedModel

IGNORED = -100
"""The label that transformers' loss leaves out."""

MANY_STEPS = 1000
"""So many that the learning rate's schedule hardly moves."""


@dataclass(frozen=True, slots=True)
class TrlStep:
    """What a step took, and its loss."""

    sample: Sample
    loss: float


class _OneStep(TrainerCallback):
    """Measures one step, then has the trainer stop."""

    trims = False
    meter: Meter | None = None
    sample: Sample | None = None

    def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
        self.meter = start_meter(trims=self.trims)

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:  # noqa: ARG002
        assert self.meter is not None, "a step ended that did not begin"
        self.sample = self.meter.stop()
        control.should_training_stop = True


def make_trainer(
    loaded: LoadedModel, tokens: Sequence[int], *, unlabelled: int, adapter: LoraConfig
) -> Callable[..., TrlStep]:
    """A function that takes one step on the conversation, whose first `unlabelled` tokens carry no loss.

    It is told whether free memory is given back before the step (`trims`).
    """
    labels = [IGNORED] * unlabelled + list(tokens[unlabelled:])
    one_step, folder = _OneStep(), tempfile.mkdtemp(prefix="ridealong-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    trainer = SFTTrainer(
        model=loaded.model,
        args=SFTConfig(
            output_dir=folder,
            max_length=None,
            max_steps=MANY_STEPS,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"input_ids": [list(tokens)], "labels": [labels]}),
        processing_class=loaded.tokenizer,
        peft_config=adapter,
        callbacks=[one_step],
    )

    trainer.remove_callback(PrinterCallback)

    def step(*, trims: bool) -> TrlStep:
        one_step.trims = trims
        loss = trainer.train().training_loss
        assert one_step.sample is not None, "trl took no step"
        return TrlStep(one_step.sample, loss)

    return step
