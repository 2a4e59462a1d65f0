# SPDX-License-Identifier: Apache-2.0
"""Compression: what is sent of a gradient, how it is written down, and what waits for the next step.

May know: collectives and transport, whose communicator sums what is sent, and torch's tensors. Knows nothing
of torch.distributed, of process groups, or of whether a communicator's other workers are machines.

Public names:

- ``exchange.GradientExchange``: one worker's gradient step, over any communicator;
- ``sparsifiers``: what is sent, by name, and ``Sparsifier`` to add one;
- ``encodings``: how it is written down;
- ``loss_policy.LossPolicy``: how much of it may go missing;
- ``bucket_layout.BucketLayout``: where each parameter lies in a bucket, and in the vector made of it.

A gradient's way has one word for each thing:

=============  ================================================================================
bucket         DDP's buffer with the gradients of some parameters; at the end, with their averages
vector         the bucket in float32 over the number of workers, parameters on scale blocks
residual       what earlier vectors had that no total has included
compensated    vector + residual
chosen         what a worker's sparsifier takes of compensated; elsewhere zero
union          where any worker has chosen something, as fine as the mask
selection      what travels of the vector: the union, and parameters that are sent whole
packed         the selected elements, one after another: a shorter vector
lanes          packed in fixed point, as the network adds it; with scales: a contribution
total          the sum over all workers of what was delivered, packed or as a vector
delivered      what the total includes of one worker's compensated; the rest is its next residual
=============  ================================================================================

And one for each kind of block:

============  ================================================================================
mask block    elements that one bit of the mask stands for, 1 to 256
packet block  lanes that the packets skip, class and lose as one, 32 to 256
scale block   lanes that share an exponent, 256
============  ================================================================================
"""
