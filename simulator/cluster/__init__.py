"""Several instances behind a router.

config.py, llmservingsim.py    what a cluster is, in a point or in LLMServingSim's JSON
prepare.py                     instances as prepared points
router.py                      which instance takes a request
instance.py                    one engine as the cluster sees it
run.py                         the loop over instances and arrivals
result.py                      what came out, of all instances together
"""
