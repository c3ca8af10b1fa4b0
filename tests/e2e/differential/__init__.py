"""The differential test: one table of requests, sent to conch and to the real Triton, and every answer compared.

A request belongs to a world (models and flags that both servers start with) and names the rows of the interface's description
that it hits: `rows.txt` lists the rows about errors, docs/COMPATIBILITY.md has the features. `differences.toml` holds each accepted
difference and the row that it follows; one that no answer needs any more fails. `scripts/check-differential` prints the rows that
no request hits.
"""
