"""Plans: pure functions over the numbers of the index.  No file is opened here, no thread started, no torch loaded.

keys, shuffle, lanes, order     shards over lanes and blocks, and samples inside a block
batching, budgets, mix          what the user asks for: FixedBatch, PixelBudget, CostBudget, Mix
statistics, where, chosen       what is known of a dataset, and a part of it
costs, oversize, groups, buckets, joining, packing      what a budget makes of a dataset
interleave, epoch, packed, mixed        which samples form the micro-batch at a position
layout                          positions: steps per rank, tails, who takes what
taken, ranks                    which shards some ranks read
making, plan, describe, state   Plan: all of it for one dataset, and what a checkpoint holds
"""

from .batching import FixedBatch
from .budgets import CostBudget, PixelBudget
from .chosen import Chosen
from .epoch import Cursor, EpochPlan, SampleRefs
from .groups import Groups
from .keys import SampleGenerators
from .layout import Share, Tail
from .making import Batch
from .mix import Mix
from .plan import Plan, TailReport
from .shuffle import Shuffle
from .state import make_state, read_state
from .statistics import ColumnStatistics, Statistics

__all__ = [
    "Batch",
    "Chosen",
    "ColumnStatistics",
    "CostBudget",
    "Cursor",
    "EpochPlan",
    "FixedBatch",
    "Groups",
    "Mix",
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
