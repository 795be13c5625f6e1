"""Signals: from what an agent noticed to what is learned. Pure functions and frozen records, pydantic only.

refusals.py   why something was not learned: the closed set of codes
records.py    what crosses the boundary: signals, served turns, lesson plans
weights.py    how much a label from each source weighs
policy.py     who learns, and what never trains
tokens.py     what planning asks of a tokenizer and its chat template
spans.py      characters to tokens
planning.py   a signal and its turn in, a lesson plan or a refusal out
"""
