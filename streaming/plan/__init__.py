"""Plans: pure functions over the numbers of the index.  No file is opened here, no thread started, no torch loaded.

keys       random numbers as a function of names
shuffle    Shuffle, and the order inside a block of shards
lanes      how many lanes, and which shards each gets
layout     positions: steps per rank, tails, who takes what
batching   FixedBatch
budgets    PixelBudget, CostBudget
epoch      which samples form the micro-batch at a position
plan       Plan: all of it for one dataset, printable
state      what a checkpoint holds
"""

from .batching import FixedBatch
from .budgets import CostBudget, PixelBudget
from .chosen import Chosen
from .epoch import Cursor, EpochPlan, SampleRefs
from .groups import Groups
from .keys import SampleGenerators
from .layout import Share, Tail
from .plan import Plan, TailReport
from .shuffle import Shuffle
from .state import make_state, read_state
from .statistics import ColumnStatistics, Statistics

__all__ = [
    "Chosen",
    "ColumnStatistics",
    "CostBudget",
    "Cursor",
    "EpochPlan",
    "FixedBatch",
    "Groups",
    "PixelBudget",
    "Plan",
    "SampleGenerators",
    "SampleRefs",
    "Share",
    "Shuffle",
    "Statistics",
    "Tail",
    "TailReport",
    "make_state",
    "read_state",
]
