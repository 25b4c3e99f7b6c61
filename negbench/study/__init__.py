"""Studies: trials of one strategy's knobs on a dev part of train. The only folder that imports optuna.

space.py       what is searched, and how a point becomes a configuration
spec.py        all that decides which trials are made: space, seeds, sampler, pruner
storage.py     where the trials lie, and locks that go with their holder
book.py        the study in its storage: claims, rescues, ends of trials
trials.py      a trial computed by the engine
work.py        the loop of a worker, and several of them
final.py       the best beside the default on fresh seeds; tables of listed points
tuned.py       the same number of trials for every strategy of a comparison
importance.py  how much each knob matters
"""

import sys

from negbench import Command

sys.modules[__name__].__class__ = Command  # `negbench.study(...)`
