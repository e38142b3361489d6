/* The text of a line, put together piece by piece. */
#ifndef FIRSTFAULT_LINE_H
#define FIRSTFAULT_LINE_H

#include "crossing.h"
#include <string.h>
#include <time.h>

#define LONGEST_START 320 /* of a line, before its addresses */
#define LONGEST_TEXT 1024 /* of the names in a line, which then has no addresses */
#define LONGEST_ADDRESS 21
#define LONGEST_SHORT (LONGEST_START + LONGEST_ADDRESS * MOST_VALUES)
#define LONGEST_SHAPE (24 + 21 * (1 + MOST_DIMENSIONS)) /* sizes or strides of a tensor */

/* What is written of a line so far, in memory that is known to have room for all of it. */
typedef struct {
    char *text, *end;
} Line;

static inline void put(Line *line, const char *text, size_t length)
{
    memcpy(line->end, text, length);
    line->end += length;
}

#define PUT(line, text) put((line), (text), sizeof(text) - 1)

static inline void put_number(Line *line, uint64_t number)
{
    char digits[20];
    int first = 20;
    do {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    put(line, digits + first, (size_t)(20 - first));
}

static inline uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline void put_start(Line *line, unsigned long long n, uint64_t t)
{
    put_number(line, n);
    PUT(line, ",\"t\":");
    put_number(line, t);
}

/* A field, which is left out where it is nothing, as the codec leaves it out. */
#define PUT_FIELD(line, name, number)                                                                                  \
    do {                                                                                                               \
        if ((number) != 0) {                                                                                           \
            PUT(line, ",\"" name "\":");                                                                               \
            put_number(line, (uint64_t)(number));                                                                      \
        }                                                                                                              \
    } while (0)

static inline void put_place(Line *line, int device, uint64_t stream)
{
    if (device >= 0) {
        PUT(line, ",\"device\":");
        put_number(line, (uint64_t)device);
    }
    PUT_FIELD(line, "stream", stream);
}

static inline void put_bytes(Line *line, PyObject *bytes)
{
    put(line, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
}

int put_shapes(Line *line, const Shape *described, const Shape *shapes, int tensors, const char *limit);

#endif
