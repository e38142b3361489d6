/* What the device reads of the tensors of a call by itself: their values never come here. As deferred_stats.py does it.
 *
 * The host writes which tensors it wants read into entries of the statistics page, and what each is into requests that
 * lie next to each other; one launch reads them all, and writes the results into the entries. Small tensors that lie on
 * the host, as a batch has some, are read here.
 */
#include "crossing.h"
#include <math.h>
#include <string.h>
#include <time.h>

#define ENTRY_BYTES 128 /* as in record/statistics_page.py */
#define RESULT_OFFSET 64
#define TOKEN_OFFSET 40
#define REQUEST_BYTES 128 /* as in device_stats.py */
#define REQUEST_WORDS 13
#define BLOCK_BYTES 8192
#define BLOCK_VALUES 512
#define TURNS 4
#define ENDLESS 2147483647
#define SPIN_NANOSECONDS 100000 /* to have the driver wait takes 10 to 100 µs by itself */
#define CAPTURE_RELAXED 2

/* How one tensor of a layout is read, as by_device.py packs it. */
typedef struct {
    int64_t tensor, itemsize;
    int64_t most_bytes, most_parts; /* of what is read, and programs that read it; none of what is read here */
    int64_t number;                 /* how an entry's result is to be understood */
    /* The rest is of a tensor as it was described; it holds for one that lies as that did, and of a contiguous one it
     * follows from its size. */
    int64_t misaligned, reach; /* its address as far as that is no multiple of 16, and bytes from its first element on */
    int64_t numel, times;
    int64_t words[REQUEST_WORDS];
} Reading;

enum { BFLOAT16 = 6, FLOAT32 = 7, FLOAT64 = 9, UINT8 = 11, INT8 = 12, INT16 = 14, INT32 = 16, INT64 = 18 };

/* --- entries: which of the page's are to be had */

static PyObject *entries_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs != NULL || !PyArg_ParseTuple(args, "")) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Entries takes nothing");
    }
    Entries *entries = (Entries *)type->tp_alloc(type, 0);
    if (entries != NULL) {
        entries->token = 1;
    }
    return (PyObject *)entries;
}

/* Take so many entries next to each other, and tokens for them; 0 where there are fewer. */
static int entries_take(Entries *entries, unsigned int count, Taken *taken)
{
    if (entries->end - entries->next < count) {
        return 0;
    }
    *taken = (Taken){entries->next, count, entries->token};
    entries->next += count;
    entries->token += count;
    return 1;
}

static PyObject *take(PyObject *self, PyObject *number)
{
    Taken taken;
    unsigned long count = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (count > UINT32_MAX || !entries_take((Entries *)self, (unsigned int)count, &taken)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("IK", taken.first, (unsigned long long)taken.token);
}

static PyObject *move(PyObject *self, PyObject *args)
{
    Entries *entries = (Entries *)self;
    unsigned int first, end;
    if (!PyArg_ParseTuple(args, "II", &first, &end)) {
        return NULL;
    }
    unsigned int next = entries->next;
    entries->next = first;
    entries->end = end < first ? first : end;
    return PyLong_FromUnsignedLong(next);
}

static PyObject *get_next(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((Entries *)self)->next);
}

static PyMethodDef entries_methods[] = {
    {"take", take, METH_O, NULL},
    {"move", move, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef entries_attributes[] = {
    {"next", get_next, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject EntriesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Entries",
    .tp_basicsize = sizeof(Entries),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = entries_new,
    .tp_methods = entries_methods,
    .tp_getset = entries_attributes,
};

/* --- which tensors are read */

/* How many tensors of a layout are read. */
unsigned int readings_of(const Layout *layout)
{
    return layout->readings == NULL ? 0 : (unsigned int)(PyBytes_GET_SIZE(layout->readings) / (Py_ssize_t)sizeof(Reading));
}

static Reading reading_at(const Layout *layout, unsigned int index)
{
    Reading reading;
    memcpy(&reading, PyBytes_AS_STRING(layout->readings) + index * sizeof reading, sizeof reading);
    return reading;
}

/* Whether what by_device.py has packed is of a layout. */
int readings_are_of(PyObject *readings, PyObject *fixed, int tensors)
{
    Py_ssize_t size = PyBytes_GET_SIZE(readings);
    for (Py_ssize_t at = 0; at < PyBytes_GET_SIZE(fixed); at++) {
        if ((unsigned char)PyBytes_AS_STRING(fixed)[at] >= tensors) {
            return 0;
        }
    }
    for (Py_ssize_t at = 0; at + (Py_ssize_t)sizeof(Reading) <= size; at += (Py_ssize_t)sizeof(Reading)) {
        int64_t tensor;
        memcpy(&tensor, PyBytes_AS_STRING(readings) + at, sizeof tensor);
        if (tensor < 0 || tensor >= tensors) {
            return 0;
        }
    }
    return size % (Py_ssize_t)sizeof(Reading) == 0;
}

static uint64_t address_of(const Walk *walk, const Reading *reading)
{
    const State *state = &walk->state[reading->tensor];
    return state->storage == 0 ? 0 : state->storage + state->offset * (uint64_t)reading->itemsize;
}

/* How to read a dense tensor, as device_stats.py's _plan does it: blocks of 16 bytes a thread, the rest one by one. */
static void plan_dense(Reading *reading, uint64_t address)
{
    int64_t per_block = BLOCK_BYTES / reading->itemsize, head = (int64_t)(-address % 16) / reading->itemsize;
    head = head < reading->numel ? head : reading->numel;
    int64_t blocks = (reading->numel - head) / per_block, elements = reading->numel - blocks * per_block;
    int64_t turns = (blocks + (elements + BLOCK_VALUES - 1) / BLOCK_VALUES + TURNS - 1) / TURNS;
    int64_t parts = turns < reading->most_parts ? turns : reading->most_parts;
    int64_t words[REQUEST_WORDS] = {reading->words[0], parts > 1 ? parts : 1, blocks, elements, head, blocks * per_block,
                                    ENDLESS,           ENDLESS,               ENDLESS, 1};
    memcpy(reading->words, words, sizeof words);
}

/* Find out how a tensor of a call is read, from how the described one was; 0 where that does not tell it. */
static int adapt(Reading *reading, const Walk *walk, const Layout *layout)
{
    const Shape *shape = &walk->shape[reading->tensor];
    uint64_t address = address_of(walk, reading), itemsize = (uint64_t)reading->itemsize;
    if (address == 0 || address % itemsize != 0) {
        return 0;
    }
    if (shape_is_contiguous(shape)) {
        reading->numel = (int64_t)shape_elements(shape);
        reading->times = 1;
        reading->reach = reading->numel * reading->itemsize;
        if (reading->most_parts > 0) {
            plan_dense(reading, address);
        }
    }
    else if (reading->misaligned != (int64_t)(address & 15) || !shape_is(shape, &layout->shape[reading->tensor])) {
        return 0;
    }
    uint64_t start = walk->state[reading->tensor].offset * itemsize;
    return reading->numel > 0 && reading->numel * reading->itemsize <= reading->most_bytes &&
           start + (uint64_t)reading->reach <= tensor_storage_bytes(walk->tensor[reading->tensor]);
}

/* Whether what is not read for its size still has that. */
static int are_fixed(const Layout *layout, const Walk *walk)
{
    Py_ssize_t count = layout->fixed == NULL ? 0 : PyBytes_GET_SIZE(layout->fixed);
    for (Py_ssize_t at = 0; at < count; at++) {
        int index = (unsigned char)PyBytes_AS_STRING(layout->fixed)[at];
        if (!shape_is(&walk->shape[index], &layout->shape[index])) {
            return 0;
        }
    }
    return 1;
}

/* --- where they are read */

static void forget_lanes(Reader *reader)
{
    reader->used = reader->oldest = 0;
}

/* What a stream's readings need, or 0 where that cannot be had. */
static int lane_of(Box *box, int device, uint64_t stream, Lane *lane)
{
    Reader *reader = &box->reader;
    for (unsigned int index = 0; index < reader->used; index++) {
        if (reader->lanes[index].stream == stream && reader->lanes[index].device == device) {
            *lane = reader->lanes[index];
            return 1;
        }
    }
    unsigned long long scratch, function;
    *lane = (Lane){.device = device, .stream = stream};
    PyObject *found = PyObject_CallMethod(box->slow, "lane", "iK", device, (unsigned long long)stream);
    int is_there = found != NULL && PyTuple_Check(found) &&
                   PyArg_ParseTuple(found, "KKI", &scratch, &function, &lane->shared);
    Py_XDECREF(found);
    if (!is_there) {
        forgive();
        return 0;
    }
    lane->scratch = scratch;
    lane->function = function;
    reader->lanes[reader->used < MOST_STREAMS ? reader->used++ : reader->oldest++ % MOST_STREAMS] = *lane;
    return 1;
}

/* Find out whether the device can read what a layout says of a call's tensors, and take entries for them; 0 if not. */
int readings_take(Box *box, const Layout *layout, const Walk *walk, int device, uint64_t stream, Taken *taken)
{
    unsigned int count = readings_of(layout);
    *taken = (Taken){0, 0, 0};
    if (!are_fixed(layout, walk)) {
        return 0;
    }
    if (count == 0) {
        return 1;
    }
    Lane lane;
    if (box->reader.entries == NULL || device < 0 || !lane_of(box, device, stream, &lane)) {
        return 0;
    }
    for (unsigned int index = 0; index < count; index++) {
        Reading reading = reading_at(layout, index);
        if (!adapt(&reading, walk, layout)) {
            return 0;
        }
    }
    return entries_take(box->reader.entries, count, taken);
}

static void put_entry(char *entry, uint64_t token, uint64_t call, const Reading *reading, unsigned int index, int side)
{
    uint64_t words[4] = {token, call, (uint64_t)reading->numel, (uint64_t)reading->times};
    uint32_t place = index;
    memcpy(entry, words, sizeof words);
    memcpy(entry + sizeof words, &place, sizeof place);
    entry[sizeof words + sizeof place] = (char)side;
    entry[sizeof words + sizeof place + 1] = (char)reading->number;
}

/* Let entries that were taken go unread: complete, and of no values. */
void readings_waive(Box *box, const Taken *taken)
{
    const Reading none = {.times = 1};
    for (unsigned int index = 0; index < taken->count; index++) {
        char *entry = box->reader.page + (size_t)(taken->first + index) * ENTRY_BYTES;
        uint64_t token = taken->token + index;
        put_entry(entry, token, 0, &none, index, 0);
        memcpy(entry + RESULT_OFFSET + TOKEN_OFFSET, &token, sizeof token);
    }
}

/* --- reading */

#define READ_INTEGERS(type)                                                                                            \
    for (int64_t index = 0; index < reading->numel; index++) {                                                         \
        type value = ((const type *)values)[index];                                                                    \
        low = value < low ? value : low;                                                                               \
        high = value > high ? value : high;                                                                            \
        total += (double)value;                                                                                        \
    }

static void read_integers(const void *values, const Reading *reading, char *result)
{
    int64_t low = INT64_MAX, high = INT64_MIN, counts[2] = {reading->numel, 0};
    double total = 0;
    switch (reading->words[0]) {
    case UINT8:
        READ_INTEGERS(uint8_t);
        break;
    case INT8:
        READ_INTEGERS(int8_t);
        break;
    case INT16:
        READ_INTEGERS(int16_t);
        break;
    case INT32:
        READ_INTEGERS(int32_t);
        break;
    default:
        READ_INTEGERS(int64_t);
    }
    memcpy(result, &low, sizeof low);
    memcpy(result + 8, &high, sizeof high);
    memcpy(result + 16, &total, sizeof total);
    memcpy(result + 24, counts, sizeof counts);
}

static double float_at(const void *values, int64_t index, int64_t kind)
{
    if (kind == FLOAT64) {
        return ((const double *)values)[index];
    }
    if (kind == FLOAT32) {
        return ((const float *)values)[index];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)values)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void read_floats(const void *values, const Reading *reading, char *result)
{
    double found[3] = {INFINITY, -INFINITY, 0};
    int64_t counts[2] = {0, 0}; /* of what is not NaN, and of what is infinite */
    for (int64_t index = 0; index < reading->numel; index++) {
        double value = float_at(values, index, reading->words[0]);
        if (!isnan(value)) {
            found[0] = value < found[0] ? value : found[0];
            found[1] = value > found[1] ? value : found[1];
            found[2] += value;
            counts[0]++;
            counts[1] += isinf(value) != 0;
        }
    }
    memcpy(result, found, sizeof found);
    memcpy(result + sizeof found, counts, sizeof counts);
}

/* Read a tensor that lies here, and complete its entry. */
static void read_here(const Walk *walk, const Reading *reading, char *entry, uint64_t token)
{
    const void *values = (const void *)(uintptr_t)address_of(walk, reading);
    if (reading->words[0] < UINT8) {
        read_floats(values, reading, entry + RESULT_OFFSET);
    }
    else {
        read_integers(values, reading, entry + RESULT_OFFSET);
    }
    memcpy(entry + RESULT_OFFSET + TOKEN_OFFSET, &token, sizeof token);
}

static void put_request(const Reader *reader, const Walk *walk, const Reading *reading, uint64_t slot, uint64_t token)
{
    uint64_t request[REQUEST_BYTES / 8] = {address_of(walk, reading)};
    memcpy(request + 1, reading->words, sizeof reading->words);
    request[1 + REQUEST_WORDS] = token;
    request[2 + REQUEST_WORDS] = reader->results + slot * ENTRY_BYTES;
    memcpy(reader->asked + slot * REQUEST_BYTES, request, sizeof request);
}

/* Write what is to be read where the device reads that; how many programs share the largest tensor, 0 for none. */
static unsigned int ask(Box *box, const Layout *layout, const Walk *walk, uint64_t call, int side, const Taken *taken)
{
    Reader *reader = &box->reader;
    unsigned int parts = 0;
    for (unsigned int index = 0; index < taken->count; index++) {
        Reading reading = reading_at(layout, index);
        uint64_t slot = taken->first + index, token = taken->token + index;
        (void)adapt(&reading, walk, layout); /* as when the entries were taken */
        put_entry(reader->page + slot * ENTRY_BYTES, token, call, &reading, index, side);
        put_request(reader, walk, &reading, slot, token);
        if (reading.most_parts == 0) {
            read_here(walk, &reading, reader->page + slot * ENTRY_BYTES, token);
        }
        parts = (uint64_t)reading.words[1] > parts ? (unsigned int)reading.words[1] : parts;
    }
    return parts;
}

/* Enqueue launches for entries that are asked for; whether the driver took them. */
static int launch(const Reader *reader, const Lane *lane, const Taken *taken, unsigned int parts)
{
    void *stream = (void *)(uintptr_t)lane->stream;
    for (unsigned int at = 0; at < taken->count; at += reader->most_tensors) {
        unsigned int left = taken->count - at, count = left < reader->most_tensors ? left : reader->most_tensors;
        size_t offset = (size_t)(taken->first + at) * REQUEST_BYTES;
        uint64_t values[4] = {reader->requests + offset, lane->scratch, 0, 0}; /* triton's own are null, and last */
        if (parts > reader->many_parts) {
            values[0] = lane->scratch + reader->copied;
            reader->copy(values[0], reader->asked + offset, (size_t)count * REQUEST_BYTES, stream);
        }
        void *pointers[4] = {&values[0], &values[1], &values[2], &values[3]};
        if (reader->launch((void *)(uintptr_t)lane->function, parts, count, 1, reader->threads, 1, 1, lane->shared,
                           stream, pointers, NULL) != 0) {
            return 0;
        }
    }
    return 1;
}

static uint64_t ticks(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Wait until the device has written the last of some entries: it reads them in their order. */
static void wait(const Reader *reader, const Lane *lane, const Taken *taken)
{
    uint64_t until = ticks() + SPIN_NANOSECONDS;
    for (unsigned int index = 0; index < taken->count;) {
        const char *entry = reader->page + (size_t)(taken->first + index) * ENTRY_BYTES;
        uint64_t token = *(const volatile uint64_t *)(const void *)(entry + RESULT_OFFSET + TOKEN_OFFSET);
        if (token == taken->token + index) {
            index++;
        }
        else if (ticks() > until) {
            (void)reader->synchronize((void *)(uintptr_t)lane->stream);
            return;
        }
    }
}

/* Have the device read the tensors that entries were taken for, and wait for it where that is wanted.
 *
 * Others run meanwhile, for the driver may wait for them. A dead context takes nothing: that stays pending, as it is.
 */
void readings_start(Box *box, const Layout *layout, const Walk *walk, int device, uint64_t stream, uint64_t call,
                    int side, const Taken *taken)
{
    Lane lane;
    if (taken->count == 0) {
        return;
    }
    if (!lane_of(box, device, stream, &lane)) {
        readings_waive(box, taken);
        return;
    }
    unsigned int parts = ask(box, layout, walk, call, side, taken);
    if (parts == 0) {
        return;
    }
    const Reader reader = box->reader;
    Py_BEGIN_ALLOW_THREADS
    int mode = CAPTURE_RELAXED; /* or a graph that another thread captures would end */
    reader.exchange_mode(&mode);
    if (launch(&reader, &lane, taken, parts) && reader.waits) {
        wait(&reader, &lane, taken);
    }
    reader.exchange_mode(&mode);
    Py_END_ALLOW_THREADS
}

/* Read by a page from now on: its entries, where it lies and where the device writes, where requests lie for host and
 * device, the driver's functions, and numbers of device_stats.py. */
PyObject *use_reader(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entries", "page", "results", "asked", "requests", "driver", "numbers", "waits", NULL};
    Box *box = (Box *)self;
    PyObject *entries;
    unsigned long long page, results, asked, requests, driver[4];
    unsigned int numbers[4];
    int waits;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!KKKK(KKKK)(IIII)p", names, &EntriesType, &entries, &page, &results,
                                     &asked, &requests, &driver[0], &driver[1], &driver[2], &driver[3], &numbers[0],
                                     &numbers[1], &numbers[2], &numbers[3], &waits)) {
        return NULL;
    }
    Reader *reader = &box->reader;
    Py_INCREF(entries);
    Py_XSETREF(reader->entries, (Entries *)entries);
    reader->page = (char *)(uintptr_t)page;
    reader->results = results;
    reader->asked = (char *)(uintptr_t)asked;
    reader->requests = requests;
    reader->launch = (LaunchKernel)(uintptr_t)driver[0];
    reader->copy = (CopyToDevice)(uintptr_t)driver[1];
    reader->synchronize = (Synchronize)(uintptr_t)driver[2];
    reader->exchange_mode = (ExchangeMode)(uintptr_t)driver[3];
    reader->most_tensors = numbers[0];
    reader->many_parts = numbers[1];
    reader->threads = numbers[2];
    reader->copied = numbers[3];
    reader->waits = (char)waits;
    forget_lanes(reader);
    Py_RETURN_NONE;
}

/* Ask for what each stream needs once more. */
PyObject *forget_readers(PyObject *self, PyObject *unused)
{
    (void)unused;
    forget_lanes(&((Box *)self)->reader);
    Py_RETURN_NONE;
}

/* Read nothing any more. */
PyObject *stop_reading(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_CLEAR(((Box *)self)->reader.entries);
    Py_RETURN_NONE;
}
