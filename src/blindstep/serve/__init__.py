"""The feedback service: better from votes, privately, over HTTP (`blindstep serve`, docs/serve.md).

This folder needs the extra `blindstep[serve]`; its client needs nothing but Python.
"""

from blindstep.serve.client import Client, Refused

__all__ = ["Client", "Refused"]
