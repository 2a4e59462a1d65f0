# SPDX-License-Identifier: Apache-2.0
"""Compressed updates: what an optimizer applies is sent, ahead of the wire, instead of gradients.

Every worker makes the step of its own gradient, at once, in its own weights. What of it no sum has delivered
is *pending*; what was delivered to all is the *shared point*, the same bits on every worker:

    weights of a worker = shared point + its pending part.

So gradients are computed where a worker's own steps have been taken (look-ahead), and a late delivery is no
step of old parameters. Modules:

==========  ========================================================================================
layout      parameters in rows of 256 values: the unit of scales, samples and selection
parts       parameters where they lie in memory, as C reads them
rotation    which rows are in turn at a step, the same on all workers
coverage    the share of the rows that is delivered, which may follow the harm
rules       the steps of SGD, Adam and AdamW, of one worker's gradient
samples     the mean gradient of some rows, in few bits: for second moments, and for clipping
moments     the second moments of the mean gradient, from samples
delivery    how pending values are summed: one bit each with a scale that all know, or fixed point
harm        how much waits, for how long, and how far a worker is from the shared point
stage       one worker's step, over any communicator
==========  ========================================================================================

Example::

    stage = UpdateStage(layout, settings, "adam", communicator.size)
    stage.begin_from(weights)                        # worker 0's weights become the shared point
    stage.step(communicator, weights, gradients, options)  # overwrites this worker's weights
    stage.finish(communicator, weights)              # nothing is pending any more
"""
