"""What moving data between ranks costs, modelled: no card was measured for it.

`config.py` describes the links, `collectives.py` holds what a collective over one dimension costs,
`cost.py` puts dimensions together, `replay.py` runs a whole trace. The formulas are those of
ASTRA-Sim's congestion-unaware analytical network, to the nanosecond; `chakra.py`, `files.py` and
`text_trace.py` write what ASTRA-Sim itself reads.
"""
