"""The ``mpi://`` communication backend for ``dask.distributed``.

Importing this package imports neither Dask nor MPI. Dask finds the backend through the entry
point ``distributed.comm.backends``: install the package and say ``protocol="mpi"``.

One message goes through the modules like this::

    comm       distributed's Comm: serializes, and hands frames to its channel
    wire       frames <-> one header message and the large frames
    channel    sends, counts, drains, closes, survives a dead peer
    inbox      finds what arrives on the channel's tag and puts it together
    engine     polls MPI for every channel of an event loop, and rests when nothing is due
    line       the TCP connection beside each channel: handshake, doorbell, liveness, close

and a connection comes to be like this::

    backend    connector and listener of the address mpi://host:port
    handshake  who are you, which MPI do you have, which tag do you receive on
    pairing    the one communicator that two processes share
    runtime    MPI itself, started at the first use: ``pmi`` lets it start without mpiexec,
               ``libraries`` refuses a second one, ``survival`` outlives killed peers
"""
