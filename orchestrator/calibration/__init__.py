"""Finding the settings of a card and engine build that reproduce recorded runs.

study.py       the study file: base point, parameters, runs with what is fitted and what is held out
evaluate.py    candidate settings as points of a sweep, and what came out for every request
objective.py   one number of a candidate, on all requests or on resampled ones
surface.py     where a rough objective has its minimum
search.py      which candidates to try: grid and refinement, or Optuna
uncertainty.py intervals, and what the data do not determine
judge.py       the fit on requests it never saw, beside the settings as they were
steps.py       host time by regression, where a recording has steps
report.py      Markdown, pictures, and the calibrated card
session.py     one study from its file to its folder
"""
