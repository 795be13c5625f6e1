"""The store: the append-only ledger and the tables it speaks of, on SQLite by default and PostgreSQL by URL.

* Every change is one transaction that also appends the ledger row telling of it.
* An operation is a plain function whose first argument is a SQLAlchemy `Session`; `store.store.Store` runs
  them from asyncio, `store.database.Database` from anywhere else.
* Nothing here knows the engine or HTTP: token ids, text and codes come in as plain values.

Read in this order: `words`, `records`, `tables`, `ledger`, `chain`, then the operations (`turns`, `signals`,
`lessons`, `reshaping`, `steps`, `adapters`, `policies`), then `database` and `store`.
"""
