"""The revisions of the store's tables, run by Alembic through `store.revisions`.

* A revision is written out in full and imports nothing of today's code: it says what the tables were then.
* A revision that was released is never edited; the next one changes what it made.
"""
