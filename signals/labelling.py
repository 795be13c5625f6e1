"""Labelling: the pieces of a turn's own prompt that are to be learned, as one run with gaps.

* A label that would split a token grows to the token's border; where two label a token, the higher weight counts.
* The run goes from the first labelled token to the last. Tokens between labels are read and not learned.
* The very first token is read and not learned: nothing before it predicts it.
"""

from signals.records import Label, Labels, Turn
from signals.refusals import RefusalCode, RefusalError
from signals.served import Run, place_in_prompt, prompt_offsets
from signals.spans import Place, Span, locate_range, range_of, token_span
from signals.tokens import ChatTokenizer


def labels_run(signal: Labels, turn: Turn, tokenizer: ChatTokenizer) -> Run:
    """Find the tokens that the labels point at, with their weights. Raises as `signals.runs.find_run`."""
    weights = _weights(signal.labels, turn, tokenizer)
    labelled = [at for at, weight in enumerate(weights) if at and weight]
    if not labelled:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"The labels point at no token of turn {turn.id} that another precedes. Point at more of it.",
        )
    span = Span(labelled[0], labelled[-1] + 1)
    return Run(turn.prompt_tokens, span, tuple(weights[span.start : span.end]))


def _weights(labels: tuple[Label, ...], turn: Turn, tokenizer: ChatTokenizer) -> list[float]:
    """Return the weight of each of the prompt's tokens, 0 where no label is."""
    places = [(label.weight, _place(label, turn)) for label in labels]
    placed = {at: place_in_prompt(turn, at, tokenizer) for at in {place.message for _, place in places}}
    offsets = prompt_offsets(next(iter(placed.values())).text, turn, tokenizer)
    weights = [0.0] * len(offsets)
    for weight, place in sorted(places, key=lambda labelled: labelled[0]):
        tokens = token_span(offsets, placed[place.message].within(place.characters))
        weights[tokens.start : tokens.end] = [weight] * len(tokens)
    return weights


def _place(label: Label, turn: Turn) -> Place:
    if label.message >= turn.reply_index:
        raise RefusalError(
            RefusalCode.SPAN_NOT_FOUND,
            f"A label points at message {label.message}, and the prompt of turn {turn.id} has {turn.reply_index}, "
            "counted from 0. Label a message of the prompt; for a reply, signal an action or a correction.",
        )
    return locate_range("label", turn, label.message, range_of(label))
