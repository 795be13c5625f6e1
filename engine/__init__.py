"""The lane's engine: one resident causal LM, its slots, its adapters, and the lessons that ride its batches.

It knows torch, transformers and peft, and nothing of HTTP, SQL or signals. It returns values; the daemon
turns them into answers and ledger rows.
"""
