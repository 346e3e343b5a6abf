"""The ``mpi://`` communication backend for ``dask.distributed``.

Importing this package imports neither Dask nor MPI. Dask finds the backend through the entry
point ``distributed.comm.backends``: install the package and say ``protocol="mpi"``.

One message goes through the modules like this::

    comm       distributed's Comm: serializes, and hands frames to its channel
    wire       frames <-> one header message and the large frames
    channel    sends, counts, drains, closes, survives a dead peer
    inbox      finds what arrives on the channel's tag and puts it together
    outbox     hands messages to MPI, and knows which have not left yet
    engine     polls MPI for every channel of an event loop, and rests when nothing is due
    transfers  what MPI has not completed, and the large receives that wait to be posted
    line       the TCP connection beside each channel: handshake, doorbell, liveness, close

and a connection comes to be like this::

    backend    connector and listener of the address mpi://host:port
    handshake  the messages of two processes before they talk MPI
    introduction  which mode both have in common
    pairing    the one communicator that two processes share: who leads, and who proves what
    connect    MPI_Comm_connect in a thread, whatever the peer does meanwhile
    pairs      the processes that this one has met; ``shared_memory`` is released when they die
    runtime    MPI itself, started at the first use: ``pmi`` lets it start without mpiexec,
               ``libraries`` refuses a second one, ``ucx`` is what UCX may use, ``survival``
               outlives killed peers
"""
