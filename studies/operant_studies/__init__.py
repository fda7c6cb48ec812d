"""Each paper's experiments, run again.

Every study is a function ``run_study`` that runs what is not finished yet, writes a page with its pictures, and
returns the path of the page. Its arguments:

- ``out``: the folder of this study at this scale; a second run resumes the first.
- ``data``: the folder of data sets and weights; ``smoke`` needs none.
- ``scale``: ``smoke`` shows that the study runs, on embedded data; ``small`` gives the published page; one study also
  has ``paper``.
- ``workers``: processes, each with one thread.
- ``console``: prints progress.

Studies of uncertainty (``kuk``, ``defences``, ``enhance``) also take ``weights``, the file that ``python -m
operant_studies.train_nin`` wrote, which is copied to ``out``; without it NIN is left out.
"""
