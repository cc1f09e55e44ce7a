"""The nightly gate: a suite of cases, measured first, written down, then judged.

suite.py      the suite file: oracle recordings, points, bands
scenarios.py  recorded decisions of vLLM's scheduler, replayed line by line
measure.py    what every case gives tonight
baseline.py   what was accepted: predictions, step by step, and the inputs they came from
detector.py   the one place where measured and accepted become findings and a verdict
trend.py      the last accepted night, from MLflow
report.py     Markdown, JUnit XML and JSON of a judgement
tracked.py    the night in MLflow
bisect.py     the commit or the input that changed a prediction
at_commits.py what a case gives at a commit
session.py    one night from its file to its folder
"""
