"""Tests of the store: a real SQLite file each, in a temporary directory."""
