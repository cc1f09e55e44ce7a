"""ASTRA-Sim itself: steps written for it, and its own answer read back.

The program is the user's (`ASTRA_SIM_BIN`); nothing of it is part of this project.
"""

PATIENCE_S = 120.0
"""Without any rank coming to its end. A step of 64 ranks takes seconds."""
