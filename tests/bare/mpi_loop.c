/* The loop that an MPI programmer would write by hand: the yardstick for the raw layer of mpi.

   mpi_loop accept SIZE ROUNDS BATCH          prints its port, and answers
   mpi_loop PORT SIZE ROUNDS BATCH            prints the median microseconds of one message, one way,
                                              over ROUNDS batches of BATCH round trips
   mpi_loop … WINDOW                          the same per message of a window, as osu_bw has it */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int provided, accepts, size, rounds, batch, window;
    char port[MPI_MAX_PORT_NAME], *sent, *received;
    double *seconds;
    MPI_Comm peer;
    MPI_Request *requests;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    accepts = !strcmp(argv[1], "accept");
    size = atoi(argv[2]), rounds = atoi(argv[3]), batch = atoi(argv[4]);
    window = argc > 5 ? atoi(argv[5]) : 0;
    sent = malloc(size), received = malloc(size);
    /* Memory that was never written is one page of zeros, which is read faster than any other. */
    memset(sent, 'a', size), memset(received, 'b', size);
    seconds = calloc(rounds, sizeof(double));
    requests = calloc(window, sizeof(MPI_Request));
    if (accepts) {
        MPI_Open_port(MPI_INFO_NULL, port);
        printf("%s\n", port);
        fflush(stdout);
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &peer);
    } else {
        MPI_Comm_connect(argv[1], MPI_INFO_NULL, 0, MPI_COMM_SELF, &peer);
    }
    for (int round = -rounds / 10 - 1; round < rounds; round++) {
        double began = MPI_Wtime();
        if (window) {
            for (int i = 0; i < window; i++)
                if (accepts)
                    MPI_Irecv(received, size, MPI_CHAR, 0, 1, peer, &requests[i]);
                else
                    MPI_Isend(sent, size, MPI_CHAR, 0, 1, peer, &requests[i]);
            MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
            if (accepts)
                MPI_Send(received, 1, MPI_CHAR, 0, 2, peer);
            else
                MPI_Recv(received, 1, MPI_CHAR, 0, 2, peer, MPI_STATUS_IGNORE);
        } else {
            for (int i = 0; i < batch; i++) {
                if (!accepts) MPI_Send(sent, size, MPI_CHAR, 0, 1, peer);
                MPI_Recv(received, size, MPI_CHAR, 0, 1, peer, MPI_STATUS_IGNORE);
                if (accepts) MPI_Send(sent, size, MPI_CHAR, 0, 1, peer);
            }
        }
        if (round >= 0) seconds[round] = MPI_Wtime() - began;
    }
    qsort(seconds, rounds, sizeof(double), ascending);
    if (!accepts) printf("%.4f\n", seconds[rounds / 2] * 1e6 / (window ? window : 2 * batch));
    fflush(stdout);
    MPI_Comm_disconnect(&peer);
    MPI_Finalize();
    return 0;
}
