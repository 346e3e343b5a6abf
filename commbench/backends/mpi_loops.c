/* Messages of MPI without Python between them.

   Built when it is needed, for whatever MPI is loaded, and so without mpi.h: the functions come as
   pointers, and a handle, an int in some MPIs and a pointer in others, as a machine word. On the
   processors that Linux runs on, whoever expects an int takes the lower half of the word. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STATUS_BYTES = 64, STAMP_BYTES = 8, DIFFERS = -1, NO_MEMORY = -2 };

struct line {
    int (*send)(const void *, int64_t, uintptr_t, int, int, uintptr_t);
    int (*recv)(void *, int64_t, uintptr_t, int, int, uintptr_t, void *);
    int (*isend)(const void *, int64_t, uintptr_t, int, int, uintptr_t, void *);
    int (*irecv)(void *, int64_t, uintptr_t, int, int, uintptr_t, void *);
    int (*waitall)(int, void *, void *);
    uintptr_t byte, communicator;
    int64_t request_bytes;
    int rank, send_tag, receive_tag;
};

/* Round trips, each told from the one before by its first byte. */
int ping(const struct line *line, uint8_t *message, uint8_t *reply, int64_t size, int64_t count)
{
    _Alignas(16) char status[STATUS_BYTES];
    size_t stamp = size < STAMP_BYTES ? size : STAMP_BYTES;
    for (int64_t number = 0; number < count; number++) {
        int error;
        message[0]++;
        error = line->send(message, size, line->byte, line->rank, line->send_tag,
                           line->communicator);
        if (error) return error;
        error = line->recv(reply, size, line->byte, line->rank, line->receive_tag,
                           line->communicator, status);
        if (error) return error;
        if (memcmp(message, reply, stamp)) return DIFFERS;
    }
    return 0;
}

int pong(const struct line *line, uint8_t *buffer, int64_t size, int64_t count)
{
    _Alignas(16) char status[STATUS_BYTES];
    for (int64_t number = 0; number < count; number++) {
        int error = line->recv(buffer, size, line->byte, line->rank, line->receive_tag,
                               line->communicator, status);
        if (error) return error;
        error = line->send(buffer, size, line->byte, line->rank, line->send_tag,
                           line->communicator);
        if (error) return error;
    }
    return 0;
}

/* Messages there, back or both at once, all of them posted before any is waited for. */
int windows(const struct line *line, const uint8_t *sent, int64_t n_sent, uint8_t *received,
            int64_t n_received, int64_t size)
{
    int64_t count = n_sent + n_received;
    char *requests = malloc(count * line->request_bytes), *next = requests;
    char *statuses = malloc(count * STATUS_BYTES);
    int error = requests && statuses ? 0 : NO_MEMORY;
    for (int64_t number = 0; !error && number < n_received; number++, next += line->request_bytes)
        error = line->irecv(received, size, line->byte, line->rank, line->receive_tag,
                            line->communicator, next);
    for (int64_t number = 0; !error && number < n_sent; number++, next += line->request_bytes)
        error = line->isend(sent, size, line->byte, line->rank, line->send_tag,
                            line->communicator, next);
    if (!error) error = line->waitall(count, requests, statuses);
    free(requests);
    free(statuses);
    return error;
}
