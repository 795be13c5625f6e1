"""Signals: from what an agent noticed to what is learned. Pure functions and frozen records, pydantic only.

refusals.py   why something was not learned: the closed set of codes
records.py    what crosses the boundary: signals and served turns
plans.py      the lesson that planning makes of a signal
weights.py    how much a label from each source weighs
policy.py     who learns, and what never trains
tokens.py     what planning asks of a tokenizer and its chat template
spans.py      characters to tokens
served.py     runs in what a turn was served
replies.py    what a reply must be to be learned
corrections.py, labelling.py, runs.py   what a signal of each kind asks to have learned
merging.py    lessons that overlap, as one
explaining.py where each token's weight comes from
planning.py   a signal and its turn in, a lesson plan or a refusal out
"""
