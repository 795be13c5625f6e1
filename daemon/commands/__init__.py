"""The command line: what `ridealong` does without and beside a running service."""
