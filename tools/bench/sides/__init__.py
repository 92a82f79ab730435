"""Each side of the comparison, one file each, with the functions that measure.py calls by name.

MODULES                      what is imported before any clock starts
write(folder, out, **)       a flat folder of key.jpg and key.txt, written in the side's own format
raw(data, **)                single samples: dicts with `__key__`, `jpg` (bytes) and `txt`, in the stored order;
                             each iteration is an epoch
batches(data, **)            dicts with `__key__` [n], `jpg` uint8 [n, 3, SIDE, SIDE] and `txt` [n]; n is BATCH, the
                             last may be short.  `decoder` names one of common.DECODERS, `workers` the processes
start(data)                  batches from the start of an epoch, in one process; where the side can resume:
save_state(data, at, path)   what a run that has taken `at` batches would save
resume(data, at, path)       batches behind that

Each is written as the side's own documentation shows it, at the best reasonable configuration for a local dataset.
"""
