"""The commands of the command line, one family a file; `cloister.cli` puts them together."""
