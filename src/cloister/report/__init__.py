"""A run, a comparison or an audit as one self-contained HTML page: no script, and nothing to fetch."""
