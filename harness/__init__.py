"""What `benchmarks` and `papers` share: parts that are kept as they finish, records, and pages made of them.

========================= ===================================================================================
`harness.sources.Source`  the code and data that a result depends on, by their contents
`harness.cells.Cells`     measured parts, as lines of JSON in ``build/cells``, keyed by all they depend on
`harness.records`         what is kept of a result in the repository, and whether its code has changed since
`harness.pages`           tables of README.md and docs, made of records
========================= ===================================================================================
"""
