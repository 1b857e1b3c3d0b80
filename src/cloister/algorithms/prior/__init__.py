"""The flagship: a prior that tasks share, from where they lie and how they vary, in a few stages."""
