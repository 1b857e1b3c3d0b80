"""Shared by `benchmarks` and `papers`: results saved as they finish, records, and the pages made from them.

========================= ===================================================================================
`harness.sources.Source`  the code and data that a result depends on, by their contents
`harness.catalog`         what there is to measure, and what each depends on
`harness.cells.Cells`     measured parts, as lines of JSON in ``build/cells``, keyed by all they depend on
`harness.records`         what is kept of a result in the repository, and whether it is of older code
`harness.pages`           tables of README.md and docs, made of records
`harness.commands`        what both commands do alike: `stale`, `confirm`
========================= ===================================================================================
"""
