"""The dialects in which completions are asked for. Each parses and writes; one handler does the rest."""
