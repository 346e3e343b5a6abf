"""The ``mpi://`` communication backend for ``dask.distributed``.

Importing this package imports neither Dask nor MPI. Dask finds the backend through the entry
point ``distributed.comm.backends``: install the package and pass ``protocol="mpi"``.

A message passes through these modules:

=================  ==============================================================================
``comm``           distributed's ``Comm``: serializes, and passes frames to its channel
``channel``        one connection: counts messages, drains, closes; its states are drawn there
``sender``         posts the sends of a channel
``receiver``       probes for messages on the tag of a channel and receives them
``wire_format``    one header, then each large frame
``engine``         polls MPI for all channels of an event loop; sleeps when nothing is due
``spin_policy``    how long to poll before sleeping
``transfers``      requests that MPI has not completed, and large receives not posted yet
``buffers``        recycled receive buffers; ``gpu_frames``: GPU memory
``control``        the TCP connection of a channel: handshake, doorbell, liveness, close
=================  ==============================================================================

and a connection is made by these:

=================  ==============================================================================
``backend``        connector and listener of ``mpi://host:port``
``handshake``      the messages that two processes exchange over TCP before they use MPI
``pairing``        the communicator that two processes share: roles, and proofs of identity
``connect``        ``MPI_Comm_connect`` in a thread
``pairs``          the known peers; their ``shared_memory`` is detached when they die
``runtime``        MPI, initialized at the first use; ``pmi``: without ``mpiexec``;
                   ``libraries``: refuses a second MPI or UCX; ``ucx_settings``: its devices
``peer_failure``   keeps UCX from aborting when a peer dies
``receive_queue``  keeps UCX's queue in shared memory working when a sender dies
=================  ==============================================================================

When a peer dies, ``Control.connection_lost`` notices it by the end of their TCP connection:

=======================  =========================================================================
they connect             only this connection fails (``_failing`` in ``pairing``), and
                         ``MPIConnector.connect`` raises ``CommClosedError``: Dask tries again
messages are unread      ``Channel.on_lost`` waits ``GRACE_S`` for those that may have arrived
a receive is under way   it fails if UCX has lost the peer (``n_failures`` in ``peer_failure``);
                         else ``Receiver.abandon`` cancels it when the channel ends
a send is under way      ``Sender.abandon`` parks it until MPI completes it: nothing withdraws it
then                     ``Channel._end``: ``MPIComm.read`` and ``write`` raise ``CommClosedError``
its shared memory        ``release_dead`` in ``pairs`` detaches it, and ``Senders`` in
                         ``receive_queue`` skips a message that it only reserved, if they share no
                         world
in world mode            ``mpiexec`` ends all ranks
=======================  =========================================================================
"""
