"""Plans: pure functions over the numbers of the index.  No file is opened here, no thread started, no torch loaded.

keys       random numbers as a function of names
shuffle    Shuffle, and the order inside a block of shards
lanes      how many lanes, and which shards each gets
layout     positions: steps per rank, tails, who takes what
batching   FixedBatch
epoch      which samples form the micro-batch at a position
plan       Plan: all of it for one dataset, printable
state      what a checkpoint holds
"""

from .batching import FixedBatch
from .epoch import Cursor, EpochPlan, SampleRefs
from .keys import SampleGenerators
from .layout import Share, Tail
from .plan import Plan, TailReport
from .shuffle import Shuffle
from .state import make_state, read_state

__all__ = [
    "Cursor",
    "EpochPlan",
    "FixedBatch",
    "Plan",
    "SampleGenerators",
    "SampleRefs",
    "Share",
    "Shuffle",
    "Tail",
    "TailReport",
    "make_state",
    "read_state",
]
