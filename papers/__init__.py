"""The papers whose algorithms are here: their figures, tables and theorems by command.

``python -m papers list`` says what there is, ``run NAME`` makes one, ``run --all --quick`` has a look at all.
A folder of this package is a paper, and a module in it that has these is a figure (or a table, or a theorem):

* a docstring: the first line is the title, the rest says what is run;
* ``NOT_COVERED``: what of the paper's figure is not run, in a sentence;
* ``cells(options)``: the work in small parts, each a flat dictionary of JSON values, with its ``seed`` if it
  draws anything. Raises `Skipped` with a sentence if data are missing;
* ``measure(cell, options)``: one part's result as JSON values. It depends on the cell alone: options say
  where to compute and where data are. Cells are measured in other processes, and kept as they finish;
* ``summarise(found)``: from the pairs of cells and results, the small dictionary that is kept in
  ``papers/results/NAME.json``. All of the following is made from that and nothing else;
* ``table(data)``: rows of a label and four texts: the paper, its method, with the true guarantee, ours;
* ``draw(data, figure)``: on an empty matplotlib figure;
* ``claims(data)``: the paper's statements, each with what was measured of it as published and with a
  guarantee that is true, as a list of `Claim`; a statement that nothing was measured of has neither;
* ``finding(data)``: what comes of it, in one or two sentences.
"""
