"""Text for adapters: sections of docstrings without their headings, and a body whose last layer is linear."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("rich")

from benchmarks import adapters_text, docstrings

UNDERLINED = """Find a root of a function that is continuous between two given ends.

    Parameters
    ----------
    low : float
        Where the search begins, which must be below the other end of it.

    Raises
    ------
    ValueError
        If signs at both ends are the same, so that nothing can be said of roots.

    Returns
    -------
    float
        A place between both ends where the function is as good as zero.
    """
COLONS = """Scale what comes in by numbers that are learned, one for each channel.

    Args:
        channels: how many numbers there are to be learned, and told to others

    Example::

        >>> layer = Scale(channels) followed by nothing else that learns at all here
    """


def test_rows_say_which_section_they_are_of_by_nothing_but_their_words(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "__init__.py").write_text(
        f'def one():\n    """{UNDERLINED}"""\n\n\ndef two():\n    """{COLONS}"""\n'
        f'\n\ndef again():\n    """{COLONS}"""\n\n\ndef none():\n    """No headings, so it is left out."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    (file,) = docstrings.files("texts")
    assert file.name == "texts/__init__.py"
    assert sorted((row.docstring, row.section) for row in file.rows) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 4),
    ]
    told = {word for row in file.rows for word in row.words}
    (heading,) = next(docstrings.rows("parameters of nothing but so many other words"))[1][:1]
    assert heading not in told
    assert {len(row.words) for row in file.rows} == {docstrings.WORDS}


def test_docstrings_are_on_one_side_of_a_split():
    of = np.repeat(np.arange(8), [30, 3, 9, 12, 1, 20, 6, 4])
    file = docstrings.File("", [docstrings.Row([], 0, int(one)) for one in of])
    for seed in range(20):
        train, test = adapters_text.sides(file, np.random.default_rng(seed))
        assert not set(of[train]) & set(of[test])
        assert 0 < min(len(train), len(test)) <= max(len(train), len(test)) <= adapters_text.MOST_ROWS


def test_the_last_layer_takes_averages_over_words():
    """What it makes of them is what the body makes of words, averaged, and then turned and centred."""
    rng = np.random.default_rng(0)
    words = torch.tensor(rng.integers(1, 9, (200, docstrings.WORDS)))
    words[:100, 20:] = 0
    body = adapters_text.pretrained(words, epochs=1)
    inputs = adapters_text.before_last(body, words)
    there = (words > 0)[:, :, None]
    with torch.no_grad():
        whole = (body(words) * there).sum(1) / there.sum(1)
        made = adapters_text.last_layer(body, inputs)(adapters_text.scaled(inputs, inputs))
    assert made.mean(0).abs().max() < 1e-3 * made.std()
    turned, rest = np.linalg.lstsq(whole - whole.mean(0), made, rcond=None)[:2]
    assert rest.max() < 1e-6 * made.square().sum()
    assert np.linalg.matrix_rank(turned) == adapters_text.WIDTH


def test_a_body_learns_which_words_are_common():
    words = 1 + torch.arange(64 * docstrings.WORDS).reshape(64, -1) % 4
    hidden = torch.zeros(words.shape, dtype=torch.bool)
    hidden[:, 5] = True
    bodies = (adapters_text.pretrained(words, epochs) for epochs in (0, 10))
    before, after = (adapters_text.missed(body, words, hidden).item() for body in bodies)
    assert after < before - 2
